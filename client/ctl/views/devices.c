/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/table.h"
#include "base/units.h"
#include "proto/names.h"
#include "view.h"

static const struct table_column columns[] = {
	{"DEVICE", true},  {"NAME", false},	 {"STATE", false}, {"FOR", true},
	{"WORKER", true},  {"RESTARTS", true},	 {"MEMORY", true}, {"TAKEN", true},
	{"IMPORTS", true}, {"IMPORTED", true},	 {"COMMS", true},  {"IDLE", true},
	{"MPS", false},	   {"TRANSPORT", false}, {"UUID", false},
};

/* The daemon's view; but a worker whose process is stopped is not ready. */
static const char *state_name(const struct view *v, const ncclsvc_device_info *x)
{
	const struct process *p =
		v->look && x->pid > 0 ? v->look(x->pid, false, v->look_arg) : NULL;
	if (x->state == NCCLSVC_DEVICE_READY && p && process_is_halted(p))
		return process_state_name(p->state);
	if (x->state == NCCLSVC_DEVICE_READY && !x->pid)
		return "idle"; /* its worker starts when it is needed */
	return device_state_name(x->state);
}

static enum table_style style(unsigned state)
{
	switch (state) {
	case NCCLSVC_DEVICE_READY:
		return TABLE_GOOD;
	case NCCLSVC_DEVICE_STARTING:
		return TABLE_WARN;
	}
	return TABLE_BAD;
}

const char *view_transport(unsigned transport)
{
	return transport == NCCLSVC_TRANSPORT_MPI ? "mpi" : "nccl";
}

#define VERSION_TEXT 41

/* 22809 is "2.28.9" */
static void nccl_version(int version, char text[VERSION_TEXT])
{
	snprintf(text, VERSION_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100,
		 version % 100);
}

/* 13000 is "13.0" */
static void driver_version(int version, char text[VERSION_TEXT])
{
	snprintf(text, VERSION_TEXT, "%d.%d", version / 1000, version % 1000 / 10);
}

static void bytes_cell(struct table *t, uint64_t bytes)
{
	units_bytes(table_cell(t), bytes);
	table_end(t, TABLE_PLAIN);
}

static void row(const struct view *v, struct table *t, const ncclsvc_device_info *x)
{
	char uuid[SVC_UUID_TEXT];
	svc_uuid_text(x->uuid, uuid);
	table_i64(t, x->device);
	text_name(table_cell(t), x->name, sizeof(x->name));
	table_end(t, TABLE_PLAIN);
	text_add(table_cell(t), state_name(v, x));
	table_end(t, style(x->state));
	units_age(table_cell(t), x->age_ns);
	table_end(t, TABLE_PLAIN);
	if (x->pid)
		table_i64(t, x->pid);
	else
		table_add(t, "-");
	text_u64(table_cell(t), x->restarts);
	table_end(t, x->restarts ? TABLE_WARN : TABLE_PLAIN);
	bytes_cell(t, x->memory_bytes);
	bytes_cell(t, x->worker_bytes);
	table_u64(t, x->imports);
	bytes_cell(t, x->import_bytes);
	table_u64(t, x->nccl_comms);
	table_u64(t, x->nccl_comms_idle);
	table_add(t, mps_name(x->mps));
	table_add(t, view_transport(x->transport));
	table_add(t, uuid);
}

static bool versions_differ(const ncclsvc_device_info *a, const ncclsvc_device_info *b)
{
	return a->driver_version != b->driver_version || a->nccl_version != b->nccl_version;
}

/* All workers open the same libraries and report the same versions, except while these are being
 * replaced. */
static void versions(const struct view *v)
{
	const struct snapshot *s = v->s;
	char driver[VERSION_TEXT], nccl[VERSION_TEXT];
	for (size_t i = 0; i < s->ndevices; i++) {
		const ncclsvc_device_info *x = &s->devices[i];
		bool same = i && !versions_differ(x, &s->devices[i - 1]);
		if (same || !x->driver_version)
			continue;
		driver_version(x->driver_version, driver);
		if (i)
			text_printf(v->out, "From device %d on: ", x->device);
		text_printf(v->out, "CUDA driver %s, ", driver);
		if (x->nccl_version) {
			nccl_version(x->nccl_version, nccl);
			text_printf(v->out, "NCCL %s.\n", nccl);
		} else if (x->transport == NCCLSVC_TRANSPORT_MPI) {
			text_add(v->out, "no NCCL: memory is staged through the host.\n");
		} else {
			text_add(v->out, "NCCL version not known yet.\n");
		}
	}
}

static void troubles(const struct view *v)
{
	const struct snapshot *s = v->s;
	for (size_t i = 0; i < s->ndevices; i++) {
		const ncclsvc_device_info *x = &s->devices[i];
		if (!x->text[0])
			continue;
		text_printf(v->out, "Device %d, last trouble: ", x->device);
		text_name(v->out, x->text, sizeof(x->text));
		text_char(v->out, '\n');
	}
}

static void element(const struct view *v, struct json *j, const ncclsvc_device_info *x)
{
	char text[SVC_UUID_TEXT];
	put_object(j, NULL);
	put_i64(j, "device", x->device);
	put_string(j, "name", x->name, sizeof(x->name));
	svc_uuid_text(x->uuid, text);
	put_string(j, "uuid", text, SIZE_MAX);
	put_string(j, "state", state_name(v, x), SIZE_MAX);
	put_u64(j, "state_ns", x->age_ns);
	put_i64_or_null(j, "pid", x->pid, x->pid);
	put_u64(j, "restarts", x->restarts);
	put_u64(j, "memory_bytes", x->memory_bytes);
	put_u64(j, "worker_bytes", x->worker_bytes);
	put_u64(j, "imports", x->imports);
	put_u64(j, "import_bytes", x->import_bytes);
	put_u64(j, "nccl_comms", x->nccl_comms);
	put_u64(j, "nccl_comms_idle", x->nccl_comms_idle);
	driver_version(x->driver_version, text);
	put_string(j, "driver_version", x->driver_version ? text : NULL, SIZE_MAX);
	nccl_version(x->nccl_version, text);
	put_string(j, "nccl_version", x->nccl_version ? text : NULL, SIZE_MAX);
	put_string(j, "transport", view_transport(x->transport), SIZE_MAX);
	put_string(j, "mps", mps_name(x->mps), SIZE_MAX);
	put_u64_or_null(j, "mps_server", x->mps_server, x->mps_server);
	put_string(j, "peer_source", peer_source_name(x->peer_source), SIZE_MAX);
	put_string(j, "text", x->text[0] ? x->text : NULL, sizeof(x->text));
	put_object_end(j);
	text_flush(j->out, false);
}

void view_devices(const struct view *v)
{
	const struct snapshot *s = v->s;
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_array(&j, "devices");
		for (size_t i = 0; i < s->ndevices; i++)
			element(v, &j, &s->devices[i]);
		put_array_end(&j);
		view_json_end(&j);
		return;
	}
	if (!s->ndevices) {
		text_add(v->out, "No devices: this daemon serves host memory. "
				 "`ncclsvc-ctl doctor` shows why GPUs are missing.\n");
		return;
	}
	struct table *t = table_new(columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = 0; i < s->ndevices; i++)
		row(v, t, &s->devices[i]);
	table_print(t, v->out, v->colour);
	table_free(t);
	versions(v);
	troubles(v);
}
