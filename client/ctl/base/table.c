/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdlib.h>
#include <string.h>

#define GAP 2

struct cell {
	size_t end; /* end of its text; it begins where the previous cell ends */
	uint32_t width;
	uint32_t style;
};

struct table {
	const struct table_column *columns;
	unsigned ncolumns;
	struct text text;
	struct cell *cells;
	size_t ncells, room;
	size_t widths[];
};

struct table *table_new(const struct table_column *columns, unsigned ncolumns)
{
	struct table *t = ctl_calloc(1, sizeof(*t) + ncolumns * sizeof(t->widths[0]));
	t->columns = columns;
	t->ncolumns = ncolumns;
	t->text.fd = -1;
	for (unsigned i = 0; i < ncolumns; i++)
		t->widths[i] = strlen(columns[i].header);
	return t;
}

void table_free(struct table *t)
{
	if (!t)
		return;
	text_free(&t->text);
	free(t->cells);
	free(t);
}

struct text *table_cell(struct table *t)
{
	return &t->text;
}

void table_end(struct table *t, enum table_style style)
{
	size_t begin = t->ncells ? t->cells[t->ncells - 1].end : 0;
	size_t length = t->text.len - begin;
	size_t width = length ? text_width(t->text.at + begin, length) : 0;
	size_t *widest = &t->widths[t->ncells % t->ncolumns];
	if (width > *widest)
		*widest = width;
	t->cells = ctl_grow(t->cells, t->ncells, &t->room, sizeof(*t->cells));
	t->cells[t->ncells++] = (struct cell){t->text.len, (uint32_t)width, style};
}

void table_add(struct table *t, const char *s)
{
	text_add(&t->text, s);
	table_end(t, TABLE_PLAIN);
}

void table_u64(struct table *t, uint64_t value)
{
	text_u64(&t->text, value);
	table_end(t, TABLE_PLAIN);
}

void table_i64(struct table *t, int64_t value)
{
	text_i64(&t->text, value);
	table_end(t, TABLE_PLAIN);
}

static void print_cell(const struct table *t, unsigned column, const char *s, size_t length,
		       size_t width, const char *colour, struct text *out)
{
	size_t pad = t->widths[column] - width;
	if (column)
		text_pad(out, GAP);
	if (t->columns[column].right)
		text_pad(out, pad);
	if (*colour)
		text_add(out, colour);
	text_addn(out, s, length);
	if (*colour)
		text_add(out, "\033[0m");
	if (column + 1 == t->ncolumns)
		text_char(out, '\n');
	else if (!t->columns[column].right)
		text_pad(out, pad);
}

void table_print(const struct table *t, struct text *out, bool colour)
{
	static const char *const codes[] = {
		[TABLE_PLAIN] = "",
		[TABLE_GOOD] = "\033[32m",
		[TABLE_WARN] = "\033[33m",
		[TABLE_BAD] = "\033[31m",
	};
	for (unsigned i = 0; i < t->ncolumns; i++) {
		size_t length = strlen(t->columns[i].header);
		print_cell(t, i, t->columns[i].header, length, length, colour ? "\033[1m" : "",
			   out);
	}
	size_t begin = 0;
	for (size_t i = 0; i < t->ncells; i++) {
		const struct cell *cell = &t->cells[i];
		unsigned column = (unsigned)(i % t->ncolumns);
		print_cell(t, column, t->text.at + begin, cell->end - begin, cell->width,
			   colour ? codes[cell->style] : "", out);
		begin = cell->end;
		if (column + 1 == t->ncolumns)
			text_flush(out, false);
	}
}
