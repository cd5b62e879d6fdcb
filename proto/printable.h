/* SPDX-License-Identifier: Apache-2.0
 * Texts that another process wrote, before they stand in a log, a sentence or a terminal: letters
 * of any script are as they are, and what could move the cursor, forge a line, turn the direction
 * of writing or not be seen at all becomes a '?' for each byte, white space ' '. Used where the
 * text comes in. */
#ifndef PROTO_PRINTABLE_H
#define PROTO_PRINTABLE_H

#include <stddef.h>

/* Bytes of the character at s, if it is valid UTF-8 and can be seen, or is a space; else 0. */
size_t svc_printable_length(const char *s, size_t n);
/* Makes text printable in place: a string that ends within size bytes, with zeros behind it.
 * Returns text. */
char *svc_make_printable(char *text, size_t size);

#endif
