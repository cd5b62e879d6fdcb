/* SPDX-License-Identifier: Apache-2.0 */
#include "pickle.h"

#include <string.h>

/* The opcodes' names in Python's module pickle. */
enum opcode {
	PROTO = 0x80,
	STOP = '.',
	MARK = '(',
	EMPTY_DICT = '}',
	SETITEMS = 'u',
	EMPTY_LIST = ']',
	APPENDS = 'e',
	BINUNICODE = 'X',
	LONG1 = 0x8a,
	NEWTRUE = 0x88,
	NEWFALSE = 0x89,
	NONE = 'N',
};

static void put(struct text *t, enum opcode opcode)
{
	text_char(t, (char)opcode);
}

static void put_little_endian(struct text *t, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		text_char(t, (char)(value >> 8 * i));
}

void pickle_begin(struct text *t)
{
	put(t, PROTO);
	text_char(t, 2);
}

void pickle_end(struct text *t)
{
	put(t, STOP);
}

void pickle_dict(struct text *t)
{
	put(t, EMPTY_DICT);
	put(t, MARK);
}

void pickle_dict_end(struct text *t)
{
	put(t, SETITEMS);
}

void pickle_list(struct text *t)
{
	put(t, EMPTY_LIST);
	put(t, MARK);
}

void pickle_list_end(struct text *t)
{
	put(t, APPENDS);
}

void pickle_string(struct text *t, const char *s)
{
	const size_t n = strlen(s);
	put(t, BINUNICODE);
	put_little_endian(t, n, 4);
	text_addn(t, s, n);
}

/* A number is signed: hence a ninth byte. */
void pickle_u64(struct text *t, uint64_t value)
{
	put(t, LONG1);
	text_char(t, 9);
	put_little_endian(t, value, 8);
	text_char(t, 0);
}

void pickle_bool(struct text *t, bool value)
{
	put(t, value ? NEWTRUE : NEWFALSE);
}

void pickle_none(struct text *t)
{
	put(t, NONE);
}
