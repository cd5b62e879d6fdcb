/* SPDX-License-Identifier: Apache-2.0
 * The daemon's configuration: ini file, command line, environment; later sources override earlier
 * ones. config_table.c lists every key once; all three sources, the help and --check-config use
 * that list. Single-threaded, since it uses getopt_long. */
#ifndef SERVER_CONFIG_SOURCES_H
#define SERVER_CONFIG_SOURCES_H

#include <stdio.h>

#include "base/config.h"

/* Reads all sources into *c. Returns -1 if the daemon should run; otherwise the exit code: 0 after
 * --help, --version or --check-config (printed to out), 2 after errors (all of them listed on err).
 */
int config_load(struct config *c, int argc, char *argv[], char *const envp[], FILE *out, FILE *err);

struct config_changes {
	char applied[512]; /* "log_level, sessions_max"; empty: none */
	char restart[512]; /* changed in the sources, but needing a restart */
};

/* For SIGHUP: reads all sources again and applies to *c the values that may change at run time.
 * Returns 0, or -1 with the errors on err and *c unchanged. */
int config_reload(struct config *c, int argc, char *argv[], char *const envp[], FILE *err,
		  struct config_changes *changes);

#endif
