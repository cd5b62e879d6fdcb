/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include "ids.h"

#define US  UINT64_C(1000)
#define MS  UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

#define RANKS_NAMED 8

/* Two units, the smaller one with two digits: "3m12s". */
static void pair(struct text *t, uint64_t large, char large_name, uint64_t small, char small_name)
{
	text_u64(t, large);
	text_char(t, large_name);
	text_char(t, (char)('0' + small / 10));
	text_char(t, (char)('0' + small % 10));
	text_char(t, small_name);
}

static void tenths(struct text *t, uint64_t value)
{
	text_u64(t, value / 10);
	text_char(t, '.');
	text_u64(t, value % 10);
}

void units_age(struct text *t, uint64_t ns)
{
	uint64_t seconds = ns / SEC;
	if (ns < MS) {
		text_u64(t, ns / US);
		text_add(t, " us");
	} else if (ns < SEC) {
		text_u64(t, ns / MS);
		text_add(t, " ms");
	} else if (seconds < 60) {
		tenths(t, ns / (SEC / 10));
		text_add(t, " s");
	} else if (seconds < 3600) {
		pair(t, seconds / 60, 'm', seconds % 60, 's');
	} else if (seconds < 86400) {
		pair(t, seconds / 3600, 'h', seconds / 60 % 60, 'm');
	} else {
		pair(t, seconds / 86400, 'd', seconds / 3600 % 24, 'h');
	}
}

void units_bytes(struct text *t, uint64_t bytes)
{
	static const char *const names[] = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
	if (bytes < 1024) {
		text_u64(t, bytes);
		text_add(t, " B");
		return;
	}
	unsigned i = 0;
	uint64_t unit = 1024, value;
	for (;; i++, unit *= 1024) {
		value = bytes / unit * 10 + (bytes % unit * 10 + unit / 2) / unit;
		if (value < 10240 || i == 5)
			break;
	}
	tenths(t, value);
	text_add(t, names[i]);
}

void units_waits(struct text *t, const int32_t *ranks, uint32_t shown, uint32_t total)
{
	if (shown > total)
		shown = total;
	if (!total)
		text_char(t, '-');
	for (uint32_t i = 0; i < shown; i++) {
		if (i)
			text_add(t, ", ");
		text_i64(t, ranks[i]);
	}
	if (total > shown) {
		text_add(t, " (+");
		text_u64(t, total - shown);
		text_char(t, ')');
	}
}

void units_number(struct text *t, uint64_t id)
{
	text_u64(t, ids_number(id));
	if (ids_node(id))
		text_printf(t, "@%u", ids_node(id) - 1);
}

void units_node(struct text *t, const struct snapshot *s, uint32_t node)
{
	const ncclsvc_node_info *n = snapshot_node(s, node);
	text_add(t, "node ");
	text_u64(t, node);
	if (!n || !n->host[0])
		return;
	text_add(t, " (");
	text_name(t, n->host, sizeof(n->host));
	text_char(t, ')');
}

void units_nodes(struct text *t, const struct snapshot *s, const uint32_t *nodes, uint32_t shown,
		 uint32_t total)
{
	for (uint32_t i = 0; i < shown && i < total; i++) {
		if (i)
			text_add(t, ", ");
		units_node(t, s, nodes[i]);
	}
	if (total > shown)
		text_printf(t, " (+%u)", total - shown);
}

void units_ranks(struct text *t, const int32_t *ranks, size_t n, uint32_t nranks)
{
	if (n > RANKS_NAMED) {
		text_u64(t, n);
		text_add(t, " of ");
		text_u64(t, nranks);
		text_add(t, " ranks");
		return;
	}
	text_add(t, n == 1 ? "rank " : "ranks ");
	for (size_t i = 0; i < n; i++) {
		if (i)
			text_add(t, i + 1 == n ? " and " : ", ");
		text_i64(t, ranks[i]);
	}
}
