/* SPDX-License-Identifier: Apache-2.0
 * Libraries opened at run time: looks up a table of names, and reports a missing one. */
#ifndef PROTO_DYNLIB_H
#define PROTO_DYNLIB_H

#include <stddef.h>

struct dynlib_symbol {
	const char *name;
	size_t offset; /* of its function pointer in the caller's table */
};

/* Opens the library and fills the table. Returns its handle, which must never be closed (a driver
 * does not survive dlclose), or NULL with a sentence in text that names what is missing. */
void *dynlib_open(const char *soname, const struct dynlib_symbol *symbols, size_t n, void *table,
		  char *text, size_t size);
/* Fills the table with those functions that the library has; the others become NULL. */
void dynlib_optional(void *library, const struct dynlib_symbol *symbols, size_t n, void *table);

#endif
