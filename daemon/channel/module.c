/* SPDX-License-Identifier: Apache-2.0 */
#include "module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "build_config.h"

/* The folder of the daemon's own file; empty: unknown. */
static void own_folder(char *out, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", out, size - 1);
	out[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(out, '/');
	if (slash)
		*slash = '\0';
}

const void *module_open(const char *name, const char *symbol, void **module, char *why, size_t size)
{
	static const char *const places[] = {".", "../libexec/ncclsvc", NCCLSVC_LIBEXECDIR, NULL};
	char self[PATH_MAX], path[PATH_MAX * 2];
	own_folder(self, sizeof(self));
	for (int i = 0; places[i]; i++) {
		if (places[i][0] == '/')
			snprintf(path, sizeof(path), "%s/%s", places[i], name);
		else
			snprintf(path, sizeof(path), "%s/%s/%s", self, places[i], name);
		if (access(path, F_OK))
			continue;
		/* The libraries' own modules need their symbols. */
		*module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
		const void *found = *module ? dlsym(*module, symbol) : NULL;
		if (!found)
			snprintf(why, size, "%s", *module ? "it lacks a symbol" : dlerror());
		return found;
	}
	snprintf(why, size, "not found");
	return NULL;
}
