/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"
#include "view.h"

#define LABEL_WIDTH 15

static void line(struct text *out, const char *label)
{
	text_printf(out, "%-*s", LABEL_WIDTH, label);
}

static size_t count_devices(const struct snapshot *s, unsigned state)
{
	size_t n = 0;
	for (size_t i = 0; i < s->ndevices; i++)
		n += s->devices[i].state == state;
	return n;
}

static void limited(struct text *out, const char *label, uint32_t n, uint32_t max)
{
	line(out, label);
	text_printf(out, "%u of %u\n", n, max);
}

/* "2: 1 ready, 1 lost" */
static void devices_line(const struct view *v)
{
	const struct snapshot *s = v->s;
	line(v->out, "devices");
	if (!s->ndevices) {
		text_add(v->out, "none: host memory only\n");
		return;
	}
	text_printf(v->out, "%zu", s->ndevices);
	const char *before = ": ";
	for (unsigned state = NCCLSVC_DEVICE_STARTING; state <= NCCLSVC_DEVICE_FAILED; state++) {
		size_t n = count_devices(s, state);
		if (!n)
			continue;
		text_printf(v->out, "%s%zu %s", before, n, device_state_name(state));
		before = ", ";
	}
	text_char(v->out, '\n');
}

/* "0 of 2; node 1 (host b, pid 5) was lost 3.0 s ago" */
static void node_line(const struct view *v)
{
	const struct snapshot *s = v->s;
	struct text *out = v->out;
	if (!s->nnodes)
		return;
	line(out, "node");
	for (size_t i = 0; i < s->nnodes; i++)
		if (s->nodes[i].state == NCCLSVC_NODE_SELF)
			text_printf(out, "%u of %zu", s->nodes[i].node, s->nnodes);
	for (size_t i = 0; i < s->nnodes; i++) {
		const ncclsvc_node_info *n = &s->nodes[i];
		const bool silent = node_is_silent(n);
		if (n->state != NCCLSVC_NODE_LOST && n->state != NCCLSVC_NODE_LEFT && !silent)
			continue;
		text_printf(out, "; node %u (", n->node);
		text_name(out, n->host, sizeof(n->host));
		text_printf(out, ", pid %d) %s ", n->pid,
			    silent			    ? "has not been heard of for"
			    : n->state == NCCLSVC_NODE_LOST ? "was lost"
							    : "has left");
		units_age(out, silent ? n->heard_ns : n->gone_ns);
		text_add(out, silent ? "" : " ago");
	}
	text_char(out, '\n');
}

static void nodes_json(const struct view *v, struct json *j)
{
	static const char *const states[] = {"?", "self", "alive", "left", "lost"};
	const struct snapshot *s = v->s;
	if (!s->nnodes) {
		put_null(j, "nodes");
		return;
	}
	put_array(j, "nodes");
	for (size_t i = 0; i < s->nnodes; i++) {
		const ncclsvc_node_info *n = &s->nodes[i];
		put_object(j, NULL);
		put_u64(j, "node", n->node);
		put_string(j, "state", states[n->state <= NCCLSVC_NODE_LOST ? n->state : 0],
			   SIZE_MAX);
		put_string(j, "host", n->host, sizeof(n->host));
		put_string(j, "address", n->address, sizeof(n->address));
		put_i64(j, "pid", n->pid);
		put_u64(j, "host_ranks", n->host_ranks);
		put_u64(j, "gone_ns", n->gone_ns);
		put_u64_or_null(j, "heard_ns", n->state == NCCLSVC_NODE_ALIVE, n->heard_ns);
		put_u64_or_null(j, "messages", n->state == NCCLSVC_NODE_SELF, n->messages);
		put_object_end(j);
	}
	put_array_end(j);
}

static void status_text(const struct view *v)
{
	const ncclsvc_daemon_info *d = &v->s->daemon;
	struct text *out = v->out;
	text_add(out, "ncclsvcd ");
	text_name(out, d->version, sizeof(d->version));
	text_printf(out, ", protocol %u", d->protocol_min);
	if (d->protocol_max != d->protocol_min)
		text_printf(out, " to %u", d->protocol_max);
	text_printf(out, ", pid %d, uid %u, up ", d->pid, d->uid);
	units_age(out, d->uptime_ns);
	text_add(out, d->draining == NCCLSVC_DRAINED ? ", drained: it takes no new jobs\n"
		      : d->draining		     ? ", draining: it takes no new work\n"
						     : "\n");
	node_line(v);
	line(out, "host");
	text_printf(out, "%u host rank%s, %u thread%s\n", d->host_ranks,
		    d->host_ranks == 1 ? "" : "s", d->host_threads,
		    d->host_threads == 1 ? "" : "s");
	limited(out, "sessions", d->sessions, d->sessions_max);
	limited(out, "communicators", d->comms, d->comms_max);
	line(out, "regions");
	text_printf(out, "%u, ", d->regions);
	units_bytes(out, d->region_bytes);
	text_char(out, '\n');
	devices_line(v);
	if (v->s->ndevices) {
		line(out, "MPS");
		view_mps_line(v);
	}
	line(out, "tasks");
	text_printf(out, "%llu pending of %u, %llu completed, %llu failed\n",
		    (unsigned long long)d->tasks_pending, d->tasks_max,
		    (unsigned long long)d->tasks_completed, (unsigned long long)d->tasks_failed);
	line(out, "last failure");
	if (d->last_failure.result == NCCLSVC_OK) {
		text_add(out, "none\n");
		return;
	}
	char sentence[VIEW_SENTENCE];
	text_add(out, ncclsvc_status_sentence(&d->last_failure, sentence, sizeof(sentence)));
	text_printf(out, "; communicator %llu, ", (unsigned long long)d->last_failure_comm);
	units_age(out, d->last_failure_age_ns);
	text_add(out, " ago\n");
}

static uint64_t epoch_faults(const struct snapshot *s)
{
	uint64_t n = 0;
	for (size_t i = 0; i < s->ncomms; i++)
		n += s->comms[i].epoch_faults;
	return n;
}

static void status_json(const struct view *v)
{
	const ncclsvc_daemon_info *d = &v->s->daemon;
	struct json j = view_json_begin(v);
	put_object(&j, "status");
	put_string(&j, "version", d->version, sizeof(d->version));
	put_u64(&j, "protocol_min", d->protocol_min);
	put_u64(&j, "protocol_max", d->protocol_max);
	put_i64(&j, "pid", d->pid);
	put_u64(&j, "uid", d->uid);
	put_u64(&j, "uptime_ns", d->uptime_ns);
	put_bool(&j, "draining", d->draining != 0);
	put_u64(&j, "host_ranks", d->host_ranks);
	put_u64(&j, "host_threads", d->host_threads);
	put_u64(&j, "sessions", d->sessions);
	put_u64(&j, "sessions_max", d->sessions_max);
	put_u64(&j, "comms", d->comms);
	put_u64(&j, "comms_max", d->comms_max);
	put_u64(&j, "regions", d->regions);
	put_u64(&j, "region_bytes", d->region_bytes);
	put_u64(&j, "devices", v->s->ndevices);
	put_u64(&j, "devices_ready", count_devices(v->s, NCCLSVC_DEVICE_READY));
	view_mps_json(v, &j);
	put_u64(&j, "tasks_max", d->tasks_max);
	put_u64(&j, "tasks_pending", d->tasks_pending);
	put_u64(&j, "tasks_completed", d->tasks_completed);
	put_u64(&j, "tasks_failed", d->tasks_failed);
	put_u64(&j, "epoch_faults", epoch_faults(v->s));
	nodes_json(v, &j);
	view_json_failure(&j, d);
	put_object_end(&j);
	view_json_end(&j);
}

void view_status(const struct view *v)
{
	if (v->args->json)
		status_json(v);
	else
		status_text(v);
}
