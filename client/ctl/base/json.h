/* SPDX-License-Identifier: Apache-2.0
 * JSON written as it comes, so that a list of any length needs no tree in memory. A key is NULL in
 * an array. Keys are literals that need no escapes. */
#ifndef CTL_JSON_H
#define CTL_JSON_H

#include "text.h"

struct json {
	struct text *out;
	bool comma;
};

void put_object(struct json *j, const char *key);
void put_object_end(struct json *j);
void put_array(struct json *j, const char *key);
void put_array_end(struct json *j);
/* At most max bytes of s; NULL writes null. Broken UTF-8 becomes '?'. */
void put_string(struct json *j, const char *key, const char *s, size_t max);
void put_u64(struct json *j, const char *key, uint64_t value);
void put_i64(struct json *j, const char *key, int64_t value);
void put_bool(struct json *j, const char *key, bool value);
void put_null(struct json *j, const char *key);
/* A value that is JSON already. */
void put_raw(struct json *j, const char *key, const char *value);
/* Seconds with their milliseconds. */
void put_seconds(struct json *j, const char *key, uint64_t ns);

#endif
