/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"
#include "base/units.h"
#include "view.h"

#include <stdlib.h>

static const struct table_column columns[] = {
	{"PID", true},	 {"SESSION", true}, {"NAME", false}, {"REGION", true},
	{"KIND", false}, {"DEVICE", true},  {"SIZE", true},  {"AGE", true},
};

static const struct table_column total_columns[] = {
	{"PID", true},	   {"NAME", false}, {"SESSIONS", true},
	{"REGIONS", true}, {"HOST", true},  {"ON GPUS", true},
};

struct total {
	int32_t pid;
	uint32_t session; /* one of its sessions, for the name */
	size_t sessions, regions;
	uint64_t bytes, device_bytes; /* total, and the part of it on GPUs */
};

static int by_process(const void *pa, const void *pb)
{
	const ncclsvc_region_info *a = *(const ncclsvc_region_info *const *)pa;
	const ncclsvc_region_info *b = *(const ncclsvc_region_info *const *)pb;
	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	if (a->session != b->session)
		return a->session < b->session ? -1 : 1;
	return (a->region > b->region) - (a->region < b->region);
}

static const char *kind_name(uint32_t kind)
{
	static const char *const names[] = {"memfd", "cuda-ipc", "cuda-vmm", "cuda-range"};
	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

static bool on_gpu(const ncclsvc_region_info *x)
{
	return x->kind != 0;
}

static void name_cell(const struct snapshot *s, struct table *t, uint32_t id)
{
	const ncclsvc_session_info *session = snapshot_session(s, id);
	if (session)
		text_name(table_cell(t), session->name, sizeof(session->name));
	else
		text_char(table_cell(t), '-');
	table_end(t, TABLE_PLAIN);
}

/* `list` must be sorted by process. Returns *n totals, which the caller frees. */
static struct total *totals(const ncclsvc_region_info **list, size_t nregions, size_t *n)
{
	struct total *all = ctl_calloc(nregions, sizeof(*all)), *last = NULL;
	*n = 0;
	for (size_t i = 0; i < nregions; i++) {
		const ncclsvc_region_info *x = list[i];
		bool more = last && last->pid == x->pid;
		if (!more) {
			last = &all[(*n)++];
			last->pid = x->pid;
		}
		if (!more || last->session != x->session)
			last->sessions++;
		last->session = x->session;
		last->regions++;
		last->bytes += x->bytes;
		last->device_bytes += on_gpu(x) ? x->bytes : 0;
	}
	return all;
}

static void memory_tables(const struct view *v, const ncclsvc_region_info **list, size_t nregions,
			  const struct total *all, size_t n)
{
	uint64_t bytes = 0, device_bytes = 0;
	if (!nregions) {
		text_add(v->out, "No memory is registered.\n");
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < nregions; i++) {
		table_i64(t, list[i]->pid);
		table_u64(t, list[i]->session);
		name_cell(v->s, t, list[i]->session);
		table_u64(t, list[i]->region);
		table_add(t, kind_name(list[i]->kind));
		if (!on_gpu(list[i]))
			table_add(t, "host");
		else
			table_i64(t, list[i]->device);
		units_bytes(table_cell(t), list[i]->bytes);
		table_end(t, TABLE_PLAIN);
		units_age(table_cell(t), list[i]->age_ns);
		table_end(t, TABLE_PLAIN);
		bytes += list[i]->bytes;
	}
	table_print(t, v->out, v->colour);
	table_free(t);
	text_char(v->out, '\n');
	t = table_new(total_columns, sizeof(total_columns) / sizeof(columns[0]));
	for (size_t i = 0; i < n; i++) {
		table_i64(t, all[i].pid);
		name_cell(v->s, t, all[i].session);
		table_u64(t, all[i].sessions);
		table_u64(t, all[i].regions);
		units_bytes(table_cell(t), all[i].bytes - all[i].device_bytes);
		table_end(t, TABLE_PLAIN);
		units_bytes(table_cell(t), all[i].device_bytes);
		table_end(t, TABLE_PLAIN);
		device_bytes += all[i].device_bytes;
	}
	table_print(t, v->out, v->colour);
	table_free(t);
	text_printf(v->out, "%zu region%s, ", nregions, nregions == 1 ? "" : "s");
	units_bytes(v->out, bytes);
	text_add(v->out, " in all");
	if (device_bytes) {
		text_add(v->out, ", ");
		units_bytes(v->out, device_bytes);
		text_add(v->out, " of it on GPUs");
	}
	text_add(v->out, ".\n");
}

static void memory_json(const struct view *v, const ncclsvc_region_info **list, size_t nregions,
			const struct total *all, size_t n)
{
	uint64_t bytes = 0;
	struct json j = view_json_begin(v);
	put_array(&j, "regions");
	for (size_t i = 0; i < nregions; i++) {
		put_object(&j, NULL);
		put_i64(&j, "pid", list[i]->pid);
		put_u64(&j, "session", list[i]->session);
		put_u64(&j, "region", list[i]->region);
		put_string(&j, "kind", kind_name(list[i]->kind), SIZE_MAX);
		put_i64(&j, "device", on_gpu(list[i]) ? list[i]->device : NCCLSVC_DEVICE_HOST);
		put_u64(&j, "bytes", list[i]->bytes);
		put_u64(&j, "age_ns", list[i]->age_ns);
		put_object_end(&j);
		text_flush(v->out, false);
		bytes += list[i]->bytes;
	}
	put_array_end(&j);
	put_array(&j, "processes");
	for (size_t i = 0; i < n; i++) {
		const ncclsvc_session_info *session = snapshot_session(v->s, all[i].session);
		put_object(&j, NULL);
		put_i64(&j, "pid", all[i].pid);
		put_string(&j, "name", session ? session->name : NULL, sizeof(session->name));
		put_u64(&j, "sessions", all[i].sessions);
		put_u64(&j, "regions", all[i].regions);
		put_u64(&j, "bytes", all[i].bytes);
		put_u64(&j, "device_bytes", all[i].device_bytes);
		put_object_end(&j);
	}
	put_array_end(&j);
	put_u64(&j, "bytes", bytes);
	view_json_end(&j);
}

void view_memory(const struct view *v)
{
	const struct snapshot *s = v->s;
	const ncclsvc_region_info **list = ctl_calloc(s->nregions, sizeof(list[0]));
	size_t nregions = 0, n;
	for (size_t i = 0; i < s->nregions; i++)
		if (v->args->pid < 0 || v->args->pid == s->regions[i].pid)
			list[nregions++] = &s->regions[i];
	qsort(list, nregions, sizeof(list[0]), by_process);
	struct total *all = totals(list, nregions, &n);
	if (v->args->json)
		memory_json(v, list, nregions, all, n);
	else
		memory_tables(v, list, nregions, all, n);
	free(all);
	free(list);
}
