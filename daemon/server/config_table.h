/* SPDX-License-Identifier: Apache-2.0
 * The list of all configuration keys, with functions to parse and print their values. */
#ifndef DAEMON_CONFIG_TABLE_H
#define DAEMON_CONFIG_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "config_sources.h"

enum config_kind {
	CONFIG_INT,
	CONFIG_POWER,
	CONFIG_BYTES,
	CONFIG_ENUM,
	CONFIG_PATH,
	CONFIG_TEXT,
	CONFIG_DIRECTORY
};

struct config_key {
	const char
		*name; /* log_level; the option is --log-level, the variable NCCLSVCD_LOG_LEVEL */
	enum config_kind kind;
	bool reloadable;
	size_t offset; /* in struct config */
	int64_t min, max;
	int64_t initial;
	int64_t automatic;	   /* the value of "auto"; INT64_MIN: "auto" is not allowed */
	const char *const *values; /* CONFIG_ENUM: the words, NULL at the end */
	const char *help;
};

extern const struct config_key config_keys[];
extern const unsigned config_keys_n;

/* The index of a key, or -1. Dashes count as underscores. */
int config_key_find(const char *name);
/* The name most similar to the given one, or NULL if nothing is close. */
const char *config_key_nearest(const char *name);

/* Sets a key from its text. Returns 0, or -1 with the reason in why and *c unchanged. */
int config_key_set(struct config *c, unsigned key, const char *text, char *why, size_t why_size);
/* Sets a key to its default (the socket: to empty). */
void config_key_reset(struct config *c, unsigned key);
/* Writes a key's value in the form that config_key_set reads, and returns buf. */
char *config_key_format(const struct config *c, unsigned key, char *buf, size_t size);
/* Writes a key's allowed values, and returns buf. */
char *config_key_allowed(unsigned key, char *buf, size_t size);
bool config_key_equal(const struct config *a, const struct config *b, unsigned key);
void config_key_copy(struct config *to, const struct config *from, unsigned key);

#endif
