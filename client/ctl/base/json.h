/* SPDX-License-Identifier: Apache-2.0
 * JSON written piece by piece, so that a list of any length needs no tree in memory. In arrays, the
 * key is NULL. Keys are literals without characters that need escaping. */
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
/* Writes at most max bytes of s; NULL writes null. Invalid UTF-8 becomes '?'. */
void put_string(struct json *j, const char *key, const char *s, size_t max);
void put_u64(struct json *j, const char *key, uint64_t value);
void put_i64(struct json *j, const char *key, int64_t value);
void put_bool(struct json *j, const char *key, bool value);
void put_null(struct json *j, const char *key);
/* null if the value is not known. */
void put_u64_or_null(struct json *j, const char *key, bool known, uint64_t value);
void put_i64_or_null(struct json *j, const char *key, bool known, int64_t value);
/* A value that is JSON already. */
void put_raw(struct json *j, const char *key, const char *value);
/* Seconds, to the millisecond. */
void put_seconds(struct json *j, const char *key, uint64_t ns);

#endif
