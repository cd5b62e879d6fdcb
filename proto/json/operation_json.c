/* SPDX-License-Identifier: Apache-2.0 */
#include "operation_json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "printable.h"

const char *svc_transport_name(unsigned transport)
{
	switch (transport) {
#define CASE(name, value, text)                                                                    \
	case value:                                                                                \
		return text;
		NCCLSVC_OPERATION_TRANSPORTS(CASE)
#undef CASE
	}
	return "unknown";
}

size_t svc_json_string(char *to, const char *s, size_t max)
{
	char *at = to;
	const size_t n = strnlen(s, max);
	*at++ = '"';
	for (size_t i = 0; i < n;) {
		const unsigned char c = (unsigned char)s[i];
		const size_t length = svc_printable_length(s + i, n - i);
		if (c == '"' || c == '\\') {
			*at++ = '\\';
			*at++ = (char)c;
		} else if (length) {
			memcpy(at, s + i, length);
			at += length;
		} else if (c < 0x80) {
			at += sprintf(at, "\\u%04x", c);
		} else {
			*at++ = '?';
		}
		i += length ? length : 1;
	}
	*at++ = '"';
	*at = '\0';
	return (size_t)(at - to);
}

struct writer {
	char *text;
	size_t at;
};

__attribute__((format(printf, 2, 3))) static void add(struct writer *w, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	w->at += (size_t)vsnprintf(w->text + w->at, SVC_OPERATION_JSON - w->at, format, args);
	va_end(args);
}

static void add_u64(struct writer *w, const char *key, uint64_t value)
{
	add(w, "%c\"%s\":%" PRIu64, w->at ? ',' : '{', key, value);
}

/* null: not known, or there is none. */
static void add_some(struct writer *w, const char *key, uint64_t value)
{
	if (value)
		add_u64(w, key, value);
	else
		add(w, ",\"%s\":null", key);
}

static void add_string(struct writer *w, const char *key, const char *s, size_t max)
{
	add(w, ",\"%s\":", key);
	if (*s)
		w->at += svc_json_string(w->text + w->at, s, max);
	else
		add(w, "null");
}

const char *svc_operation_json(const ncclsvc_operation_info *i, char text[SVC_OPERATION_JSON])
{
	struct writer w = {.text = text};
	const bool moves = i->op != NCCLSVC_BARRIER;
	add_u64(&w, "comm", i->comm);
	add_string(&w, "comm_label", i->comm_label, sizeof(i->comm_label));
	add(&w, ",\"comm_key\":\"%016" PRIx64 "\"", i->comm_key);
	add_u64(&w, "epoch", i->epoch);
	add_u64(&w, "nranks", i->nranks);
	add(&w, ",\"rank\":%d,\"pid\":%d", i->rank, i->pid);
	add_u64(&w, "uid", i->uid);
	add_u64(&w, "session", i->session);
	add(&w, ",\"session_ended\":%s,\"wrapped\":%s", i->ended ? "true" : "false",
	    i->wrapped ? "true" : "false");
	add_string(&w, "op", svc_op_name(i->op), SIZE_MAX);
	add_u64(&w, "seq", i->seq);
	add_u64(&w, "collective", i->collective);
	add_string(&w, "type", moves ? svc_type_name(i->type) : "", SIZE_MAX);
	add_u64(&w, "count", i->count);
	add_u64(&w, "bytes", i->bytes);
	if (i->peer < 0)
		add(&w, ",\"peer\":null");
	else
		add(&w, ",\"peer\":%d", i->peer);
	add_string(&w, "state", svc_state_name(i->state), SIZE_MAX);
	add_string(&w, "result", svc_result_name(i->result), SIZE_MAX);
	add_string(&w, "transport", svc_transport_name(i->transport), SIZE_MAX);
	add_some(&w, "submitted_ns", i->submitted_ns);
	add_some(&w, "matched_ns", i->matched_ns);
	add_some(&w, "started_ns", i->started_ns);
	add_some(&w, "done_ns", i->done_ns);
	add_some(&w, "graph", i->graph);
	add_some(&w, "kernel", i->kernel);
	add_string(&w, "plan_label", i->label, sizeof(i->label));
	add(&w, "}");
	return text;
}
