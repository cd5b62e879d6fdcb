/* SPDX-License-Identifier: Apache-2.0
 * Modules of the daemon, for libraries that it is not linked with. */
#ifndef CHANNEL_MODULE_H
#define CHANNEL_MODULE_H

#include <stddef.h>

/* Opens a module that lies beside the daemon or where it is installed, and returns a symbol of it;
 * NULL, with a sentence in why. */
const void *module_open(const char *name, const char *symbol, void **module, char *why,
			size_t size);

#endif
