/* SPDX-License-Identifier: Apache-2.0 */
#include "dynlib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *dynlib_open(const char *soname, const struct dynlib_symbol *symbols, size_t n, void *table,
		  char *text, size_t size)
{
	void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(text, size, "%s cannot be opened: %s", soname, dlerror());
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		void *symbol = dlsym(library, symbols[i].name);
		if (!symbol) {
			snprintf(text, size, "%s has no %s: it is too old", soname,
				 symbols[i].name);
			dlclose(library);
			return NULL;
		}
		memcpy((char *)table + symbols[i].offset, &symbol, sizeof(symbol));
	}
	return library;
}

void dynlib_optional(void *library, const struct dynlib_symbol *symbols, size_t n, void *table)
{
	for (size_t i = 0; i < n; i++) {
		void *symbol = dlsym(library, symbols[i].name);
		memcpy((char *)table + symbols[i].offset, &symbol, sizeof(symbol));
	}
}
