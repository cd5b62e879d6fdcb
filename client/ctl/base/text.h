/* SPDX-License-Identifier: Apache-2.0
 * A growing text buffer, into which every view writes. Running out of memory ends the program. */
#ifndef CTL_TEXT_H
#define CTL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
	char *at; /* not NUL-terminated; NULL while empty */
	size_t len, size;
	int fd;	   /* text_flush writes to it; -1: everything is kept */
	int error; /* errno of the first failed write */
};

#define TEXT_INIT(descriptor)                                                                      \
	{                                                                                          \
		.fd = (descriptor)                                                                 \
	}

void text_free(struct text *t);
void text_addn(struct text *t, const char *s, size_t n);
void text_add(struct text *t, const char *s);
void text_char(struct text *t, char c);
void text_pad(struct text *t, size_t n);
void text_u64(struct text *t, uint64_t value);
void text_i64(struct text *t, int64_t value);
__attribute__((format(printf, 2, 3), nonnull(2))) void text_printf(struct text *t,
								   const char *format, ...);
/* Adds at most max bytes of a name chosen by another process, made printable (proto/printable.h).
 */
void text_name(struct text *t, const char *s, size_t max);
/* Adds ' "name"', or nothing if it is empty. */
void text_quoted(struct text *t, const char *s, size_t max);
/* Number of terminal columns that n bytes take. */
size_t text_width(const char *s, size_t n);
/* Writes the buffer to fd if it is large, or always if `all` is set. */
void text_flush(struct text *t, bool all);
/* Returns the text as a string, which the caller frees. */
char *text_steal(struct text *t);

/* Grows an array of count elements so that there is room for at least one more. */
void *ctl_grow(void *array, size_t count, size_t *room, size_t size);
/* The array, with room for n more elements behind the count that it has; never NULL. */
void *ctl_extend(void *array, size_t count, size_t n, size_t size);
/* Zeroed; never NULL. */
void *ctl_calloc(size_t count, size_t size);

#endif
