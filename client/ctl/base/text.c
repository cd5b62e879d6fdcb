/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/printable.h"

#define FLUSH_BYTES 65536

static _Noreturn void out_of_memory(void)
{
	fputs("ncclsvc-ctl: out of memory\n", stderr);
	exit(1);
}

static void reserve(struct text *t, size_t n)
{
	if (t->size - t->len >= n)
		return;
	if (n > SIZE_MAX / 2 - t->len)
		out_of_memory();
	size_t size = t->size ? t->size : 256;
	while (size - t->len < n)
		size *= 2;
	char *at = realloc(t->at, size);
	if (!at)
		out_of_memory();
	t->at = at;
	t->size = size;
}

void text_free(struct text *t)
{
	free(t->at);
	t->at = NULL;
	t->len = t->size = 0;
}

void text_addn(struct text *t, const char *s, size_t n)
{
	if (!n)
		return;
	reserve(t, n);
	memcpy(t->at + t->len, s, n);
	t->len += n;
}

void text_add(struct text *t, const char *s)
{
	text_addn(t, s, strlen(s));
}

void text_char(struct text *t, char c)
{
	reserve(t, 1);
	t->at[t->len++] = c;
}

void text_pad(struct text *t, size_t n)
{
	if (!n)
		return;
	reserve(t, n);
	memset(t->at + t->len, ' ', n);
	t->len += n;
}

/* Not with printf, which is slow: a list of 100,000 tasks has a million numbers. */
void text_u64(struct text *t, uint64_t value)
{
	char digits[20];
	size_t at = sizeof(digits);
	do {
		digits[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	text_addn(t, digits + at, sizeof(digits) - at);
}

void text_i64(struct text *t, int64_t value)
{
	if (value < 0)
		text_char(t, '-');
	text_u64(t, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

void text_printf(struct text *t, const char *format, ...)
{
	va_list args, again;
	va_start(args, format);
	va_copy(again, args);
	int n = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (n > 0) {
		reserve(t, (size_t)n + 1);
		vsnprintf(t->at + t->len, (size_t)n + 1, format, again);
		t->len += (size_t)n;
	}
	va_end(again);
}

void text_name(struct text *t, const char *s, size_t max)
{
	size_t n = strnlen(s, max);
	for (size_t i = 0; i < n;) {
		size_t length = svc_printable_length(s + i, n - i);
		if (length)
			text_addn(t, s + i, length);
		else
			text_char(t, '?');
		i += length ? length : 1;
	}
}

void text_quoted(struct text *t, const char *s, size_t max)
{
	if (!s[0])
		return;
	text_add(t, " \"");
	text_name(t, s, max);
	text_char(t, '"');
}

size_t text_width(const char *s, size_t n)
{
	size_t width = 0;
	for (size_t i = 0; i < n; i++)
		width += ((unsigned char)s[i] & 0xc0) != 0x80;
	return width;
}

void text_flush(struct text *t, bool all)
{
	if (t->fd < 0 || (!all && t->len < FLUSH_BYTES))
		return;
	for (size_t done = 0; done < t->len && !t->error;) {
		ssize_t n = write(t->fd, t->at + done, t->len - done);
		if (n >= 0)
			done += (size_t)n;
		else if (errno != EINTR)
			t->error = errno;
	}
	t->len = 0;
}

char *text_steal(struct text *t)
{
	text_char(t, '\0');
	char *s = t->at;
	t->at = NULL;
	t->len = t->size = 0;
	return s;
}

void *ctl_grow(void *array, size_t count, size_t *room, size_t size)
{
	if (count < *room)
		return array;
	*room = *room ? *room * 2 : 8;
	void *bigger = reallocarray(array, *room, size);
	if (!bigger)
		out_of_memory();
	return bigger;
}

void *ctl_extend(void *array, size_t count, size_t n, size_t size)
{
	void *bigger = reallocarray(array, count + n + 1, size);
	if (!bigger)
		out_of_memory();
	return bigger;
}

void *ctl_calloc(size_t count, size_t size)
{
	void *p = calloc(count ? count : 1, size);
	if (!p)
		out_of_memory();
	return p;
}
