/* SPDX-License-Identifier: Apache-2.0
 * A line for the log that is put together piece by piece. What does not fit is cut off. */
#ifndef BASE_LINE_H
#define BASE_LINE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

struct line {
	char text[1024];
	size_t at;
};

__attribute__((format(printf, 2, 3))) static inline void line_add(struct line *l,
								  const char *format, ...)
{
	va_list args;
	va_start(args, format);
	const int n = vsnprintf(l->text + l->at, sizeof(l->text) - l->at, format, args);
	va_end(args);
	if (n > 0)
		l->at += (size_t)n;
	if (l->at >= sizeof(l->text))
		l->at = sizeof(l->text) - 1;
}

#endif
