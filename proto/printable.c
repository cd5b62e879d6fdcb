/* SPDX-License-Identifier: Apache-2.0 */
#include "printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Unicode's control and format characters, spaces other than ASCII's, line separators, blank
 * letters, variation selectors, private use, and noncharacters. Sorted. */
static const struct range {
	uint32_t first, last;
} hidden[] = {
	{0x0, 0x1f},	       {0x7f, 0xa0},	   {0xad, 0xad},       {0x34f, 0x34f},
	{0x600, 0x605},	       {0x61c, 0x61c},	   {0x6dd, 0x6dd},     {0x70f, 0x70f},
	{0x890, 0x891},	       {0x8e2, 0x8e2},	   {0x115f, 0x1160},   {0x1680, 0x1680},
	{0x17b4, 0x17b5},      {0x180b, 0x180f},   {0x2000, 0x200f},   {0x2028, 0x202f},
	{0x205f, 0x206f},      {0x2800, 0x2800},   {0x3000, 0x3000},   {0x3164, 0x3164},
	{0xd800, 0xf8ff},      {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
	{0xffa0, 0xffa0},      {0xfff0, 0xfffb},   {0xfffe, 0xffff},   {0x110bd, 0x110bd},
	{0x110cd, 0x110cd},    {0x13430, 0x1345f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
	{0xe0000, UINT32_MAX},
};

static bool is_hidden(uint32_t c)
{
	size_t low = 0, high = sizeof(hidden) / sizeof(hidden[0]);
	while (low < high) {
		const size_t middle = low + (high - low) / 2;
		if (hidden[middle].last < c)
			low = middle + 1;
		else
			high = middle;
	}
	return low < sizeof(hidden) / sizeof(hidden[0]) && hidden[low].first <= c;
}

size_t svc_printable_length(const char *s, size_t n)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	if (!n)
		return 0;
	uint32_t c = (unsigned char)s[0];
	if (c < 0x80)
		return c >= 0x20 && c != 0x7f;
	const size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
	if (c < 0xc0 || c > 0xf4 || length > n)
		return 0;
	c &= 0x7fu >> length;
	for (size_t i = 1; i < length; i++) {
		if (((unsigned char)s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | ((unsigned char)s[i] & 0x3f);
	}
	/* The character has a shorter form, which is the valid one. */
	if (c < smallest[length])
		return 0;
	return is_hidden(c) ? 0 : length;
}

/* The output never overtakes the input, so this works in place. */
char *svc_make_printable(char *text, size_t size)
{
	const size_t n = size ? strnlen(text, size - 1) : 0;
	size_t to = 0;
	for (size_t from = 0; from < n;) {
		const size_t length = svc_printable_length(text + from, n - from);
		if (length) {
			memmove(text + to, text + from, length);
			to += length;
			from += length;
		} else {
			text[to++] = text[from] >= '\t' && text[from] <= '\r' ? ' ' : '?';
			from++;
		}
	}
	memset(text + to, 0, size - to);
	return text;
}
