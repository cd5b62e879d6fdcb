/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <string.h>

#include "proto/printable.h"

static void begin(struct json *j, const char *key)
{
	if (j->comma)
		text_char(j->out, ',');
	j->comma = true;
	if (!key)
		return;
	text_char(j->out, '"');
	text_add(j->out, key);
	text_addn(j->out, "\":", 2);
}

void put_object(struct json *j, const char *key)
{
	begin(j, key);
	text_char(j->out, '{');
	j->comma = false;
}

void put_object_end(struct json *j)
{
	text_char(j->out, '}');
	j->comma = true;
}

void put_array(struct json *j, const char *key)
{
	begin(j, key);
	text_char(j->out, '[');
	j->comma = false;
}

void put_array_end(struct json *j)
{
	text_char(j->out, ']');
	j->comma = true;
}

void put_string(struct json *j, const char *key, const char *s, size_t max)
{
	static const char hex[] = "0123456789abcdef";
	if (!s) {
		put_null(j, key);
		return;
	}
	begin(j, key);
	text_char(j->out, '"');
	size_t n = strnlen(s, max);
	for (size_t i = 0; i < n;) {
		unsigned char c = (unsigned char)s[i];
		size_t length = svc_printable_length(s + i, n - i);
		if (c == '"' || c == '\\') {
			text_char(j->out, '\\');
			text_char(j->out, (char)c);
		} else if (length) {
			text_addn(j->out, s + i, length);
		} else if (c < 0x80) {
			text_add(j->out, "\\u00");
			text_char(j->out, hex[c >> 4]);
			text_char(j->out, hex[c & 15]);
		} else {
			text_char(j->out, '?');
		}
		i += length ? length : 1;
	}
	text_char(j->out, '"');
}

void put_u64(struct json *j, const char *key, uint64_t value)
{
	begin(j, key);
	text_u64(j->out, value);
}

void put_i64(struct json *j, const char *key, int64_t value)
{
	begin(j, key);
	text_i64(j->out, value);
}

void put_bool(struct json *j, const char *key, bool value)
{
	begin(j, key);
	text_add(j->out, value ? "true" : "false");
}

void put_null(struct json *j, const char *key)
{
	begin(j, key);
	text_add(j->out, "null");
}

void put_u64_or_null(struct json *j, const char *key, bool known, uint64_t value)
{
	if (known)
		put_u64(j, key, value);
	else
		put_null(j, key);
}

void put_i64_or_null(struct json *j, const char *key, bool known, int64_t value)
{
	if (known)
		put_i64(j, key, value);
	else
		put_null(j, key);
}

void put_raw(struct json *j, const char *key, const char *value)
{
	begin(j, key);
	text_add(j->out, value);
}

void put_seconds(struct json *j, const char *key, uint64_t ns)
{
	begin(j, key);
	text_printf(j->out, "%llu.%03u", (unsigned long long)(ns / 1000000000),
		    (unsigned)(ns / 1000000 % 1000));
}
