/* SPDX-License-Identifier: Apache-2.0 */
#include "contained.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* The line has the process's pid in each namespace, from that of /proc down to its own. */
static bool has_one_number(const char *text)
{
	while (isspace((unsigned char)*text))
		text++;
	while (isdigit((unsigned char)*text))
		text++;
	return !strcmp(text, "\n");
}

bool process_is_contained(pid_t pid)
{
	static const char name[] = "NSpid:";
	char path[64], line[256];
	bool one = false;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	FILE *f = pid > 0 ? fopen(path, "re") : NULL;
	if (!f)
		return true;
	while (!one && fgets(line, sizeof(line), f))
		one = !strncmp(line, name, sizeof(name) - 1) &&
		      has_one_number(line + sizeof(name) - 1);
	fclose(f);
	return !one;
}
