/* SPDX-License-Identifier: Apache-2.0
 * A table whose columns are as wide as their widest cell. */
#ifndef CTL_TABLE_H
#define CTL_TABLE_H

#include "text.h"

enum table_style { TABLE_PLAIN, TABLE_GOOD, TABLE_WARN, TABLE_BAD };

struct table_column {
	const char *header;
	bool right; /* right-aligned, for numbers */
};

struct table;

/* `columns` must outlive the table. */
struct table *table_new(const struct table_column *columns, unsigned ncolumns);
void table_free(struct table *table);
/* Write a cell's text to the result, then end the cell. Cells go row by row. */
struct text *table_cell(struct table *table);
void table_end(struct table *table, enum table_style style);
/* Shorthands for whole cells. */
void table_add(struct table *table, const char *s);
void table_u64(struct table *table, uint64_t value);
void table_i64(struct table *table, int64_t value);
/* Writes the whole table. Flushes `out` in between if it has an fd. */
void table_print(const struct table *table, struct text *out, bool colour);

#endif
