/* SPDX-License-Identifier: Apache-2.0
 * Runs ncclsvc-ctl in tests with several daemons, and checks its output. */
#ifndef TESTS_SAYS_H
#define TESTS_SAYS_H

#include <string.h>

#include "node_daemons.h"

static char out[65536]; /* the last output */

static inline int ctl_says(const struct daemon *d, char *const *words)
{
	char *argv[16] = {(char *)program("NCCLSVC_CTL"), "--socket", (char *)d->socket};
	for (int i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	return run_program(argv, out, sizeof(out));
}
#define CTL(d, ...) ctl_says(d, (char *const[]){__VA_ARGS__, NULL})

static inline void said(const char *what)
{
	if (!strstr(out, what))
		check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", what, out);
}

static inline void not_said(const char *what)
{
	if (strstr(out, what))
		check_failed(__FILE__, __LINE__, "\"%s\" is in: %s", what, out);
}

/* Repeats the command until its output contains `what`. Returns its exit code. */
static inline int ctl_reaches(const struct daemon *d, char *const *words, const char *what)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(20)) {
		int code = ctl_says(d, words);
		if (strstr(out, what))
			return code;
	}
	said(what);
	return -1;
}
#define REACHES(d, what, ...) ctl_reaches(d, (char *const[]){__VA_ARGS__, NULL}, what)

#endif
