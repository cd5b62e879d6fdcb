/* SPDX-License-Identifier: Apache-2.0
 * Sanitizes texts from other processes before they appear in a log, a sentence or a terminal.
 * Letters of any script are kept. Each byte of a character that could move the cursor, forge a
 * line, change the writing direction or be invisible becomes '?', and white space becomes ' '.
 * Applied on input. */
#ifndef PROTO_PRINTABLE_H
#define PROTO_PRINTABLE_H

#include <stddef.h>

/* Bytes of the character at s, if it is valid UTF-8 and visible, or a space; otherwise 0. */
size_t svc_printable_length(const char *s, size_t n);
/* Makes text printable in place: a string that ends within size bytes, followed by zeros. Returns
 * text. */
char *svc_make_printable(char *text, size_t size);

#endif
