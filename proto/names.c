/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

#define CASE_NAME(value, number, name, ...)                                                        \
	case value:                                                                                \
		return name;
#define CASE_MEANING(value, number, name, meaning)                                                 \
	case value:                                                                                \
		return meaning;
#define CASE_TRUE(value, ...)                                                                      \
	case value:                                                                                \
		return true;

#define NAME_FUNCTION(function, type, argument, LIST)                                              \
	const char *function(type argument)                                                        \
	{                                                                                          \
		switch (argument) {                                                                \
			LIST(CASE_NAME)                                                            \
		}                                                                                  \
		return "?";                                                                        \
	}

NAME_FUNCTION(svc_result_name, int, result, NCCLSVC_RESULTS)
NAME_FUNCTION(svc_op_name, unsigned, op, NCCLSVC_OPS)
NAME_FUNCTION(svc_type_name, unsigned, type, NCCLSVC_TYPES)
NAME_FUNCTION(svc_state_name, unsigned, state, NCCLSVC_STATES)
NAME_FUNCTION(svc_field_name, unsigned, field, NCCLSVC_FIELDS)
NAME_FUNCTION(svc_epoch_state_name, unsigned, state, NCCLSVC_EPOCH_STATES)
NAME_FUNCTION(svc_epoch_cause_name, unsigned, cause, NCCLSVC_EPOCH_CAUSES)
NAME_FUNCTION(svc_ending_name, unsigned, ending, NCCLSVC_ENDINGS)
NAME_FUNCTION(svc_failure_name, unsigned, failure, NCCLSVC_FAILURES)

static const char *known_redop_name(unsigned redop)
{
	switch (redop) {
		NCCLSVC_REDOPS(CASE_NAME)
	}
	return "?";
}

const char *svc_redop_name(unsigned redop)
{
	return svc_redop_made(redop) ? "premulsum" : known_redop_name(redop);
}

const char *svc_result_meaning(int result)
{
	switch (result) {
		NCCLSVC_RESULTS(CASE_MEANING)
	}
	return "unknown result";
}

bool svc_result_known(int result)
{
	switch (result) {
		NCCLSVC_RESULTS(CASE_TRUE)
	}
	return false;
}

bool svc_redop_known(unsigned redop)
{
	switch (redop) {
		NCCLSVC_REDOPS(CASE_TRUE)
	}
	return false;
}

bool svc_redop_made(unsigned redop)
{
	return redop - SVC_REDOP_MADE < SVC_REDOPS_MADE;
}

/* "SIGSEGV"; a realtime signal has a number only. */
static void signal_text(int number, char *text, size_t size)
{
	const char *name = sigabbrev_np(number);
	if (name)
		snprintf(text, size, "was killed by SIG%s", name);
	else
		snprintf(text, size, "was killed by signal %d", number);
}

const char *svc_ending_text(unsigned ending, int code, char text[SVC_ENDING_BYTES])
{
	switch (ending) {
	case NCCLSVC_ENDED_LEFT:
		return "left the communicator";
	case NCCLSVC_ENDED_ABORTED:
		return "aborted the communicator";
	case NCCLSVC_ENDED_CLOSED:
		return "closed its session";
	case NCCLSVC_ENDED_EXITED:
		if (code < 0)
			return "exited";
		snprintf(text, SVC_ENDING_BYTES, "exited with status %d", code);
		return text;
	case NCCLSVC_ENDED_KILLED:
		if (code <= 0)
			return "was killed by a signal";
		signal_text(code, text, SVC_ENDING_BYTES);
		return text;
	case NCCLSVC_ENDED_NO_MEMORY:
		return "was killed by the kernel: out of memory";
	case NCCLSVC_ENDED_DISCONNECTED:
		return "was disconnected by ncclsvcd";
	}
	return "has ended";
}

/* Appends to a bounded buffer and keeps it terminated. */
struct text {
	char *at;
	size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(t->at, t->left, format, args);
	va_end(args);
	if (n < 0)
		return;
	size_t used = (size_t)n < t->left ? (size_t)n : (t->left ? t->left - 1 : 0);
	t->at += used;
	t->left -= used;
}

/* address: an IPv4 address, then 16 bits of a port; 0: unknown. */
static void add_address(struct text *t, const char *before, uint64_t address)
{
	const uint32_t ip = (uint32_t)(address >> 16);
	if (ip)
		add(t, "%s%u.%u.%u.%u (port %u)", before, ip >> 24, ip >> 16 & 255, ip >> 8 & 255,
		    ip & 255, (unsigned)(address & 0xffff));
}

/* By its address, if its number means nothing to other nodes. */
static void add_node(struct text *t, const ncclsvc_status *st)
{
	if (st->value_b)
		add_address(t, "the daemon of node ", st->value_b);
	else
		add(t, "node %llu's daemon", (unsigned long long)st->value_a);
}

static void add_rank(struct text *t, int rank, int pid)
{
	add(t, "rank %d", rank);
	if (pid > 0)
		add(t, " (pid %d)", pid);
}

static void add_value(struct text *t, unsigned field, uint64_t value)
{
	if (field == NCCLSVC_FIELD_OP || field == NCCLSVC_FIELD_ORDER)
		add(t, "%s", value ? svc_op_name((unsigned)value) : "a different operation");
	else if (field == NCCLSVC_FIELD_TYPE)
		add(t, "%s", svc_type_name((unsigned)value));
	else if (field == NCCLSVC_FIELD_REDOP)
		add(t, "%s", svc_redop_name((unsigned)value));
	else if (field == NCCLSVC_FIELD_AGREEMENT)
		add(t, value ? "%#llx" : "none", (unsigned long long)value);
	else if (field == NCCLSVC_FIELD_TAG)
		add(t, "%lld", (long long)value);
	else
		add(t, "%llu", (unsigned long long)value);
}

static void add_missing(struct text *t, const ncclsvc_status *st)
{
	uint32_t shown = st->missing_count;
	if (shown > NCCLSVC_MISSING_SHOWN)
		shown = NCCLSVC_MISSING_SHOWN;
	add(t, st->missing_count == 1 ? "rank" : "ranks");
	for (uint32_t i = 0; i < shown; i++) {
		add(t, "%s%d", i ? ", " : " ", st->missing[i]);
		if (st->missing[i] == st->rank_b && st->pid_b > 0)
			add(t, " (pid %d)", st->pid_b);
	}
	if (st->missing_count > shown)
		add(t, " and %u more", st->missing_count - shown);
}

/* A member's submission with that agreement word: "a list of static shapes"; NULL: not known. */
static const char *agreed_name(uint64_t word)
{
	switch (word ? (unsigned)agreed_of(word) : ~0u) {
	case ~0u:
		return "an operation that is not a list of tensors";
	case AGREED_STATIC:
		return "a list of static shapes";
	case AGREED_SHAPES:
		return "a list with its shapes ahead";
	case AGREED_AHEAD:
		return "the data of a list with its shapes ahead";
	case AGREED_ALL_REDUCE:
		return "an AllReduce of tensors";
	case AGREED_ALL_GATHER:
		return "an AllGather of tensors";
	case AGREED_REDUCE_SCATTER:
		return "a ReduceScatter of tensors";
	case AGREED_PLANNED:
		return "a planned list with its shapes ahead";
	}
	return NULL;
}

static const char *refusal_text(uint64_t refusal)
{
	switch (refusal) {
		NCCLSVC_REFUSALS(CASE_NAME)
	}
	return "";
}

/* "rank 1 (pid 7) refused the list: its allocate callback failed: out of memory" */
static void add_refusal(struct text *t, const ncclsvc_status *st)
{
	const char *why = refusal_text(st->value_a);
	add_rank(t, st->rank_a, st->pid_a);
	add(t, " refused the list: %s", why);
	if (st->value_a == NCCLSVC_REFUSAL_ALLOCATE)
		add(t, ": ");
	if (!*why || st->value_a == NCCLSVC_REFUSAL_ALLOCATE)
		add(t, "%s", svc_result_meaning(st->result));
}

/* "rank 2 (pid 7) has 5" */
static void add_side(struct text *t, unsigned field, int32_t rank, int32_t pid, uint64_t value)
{
	add_rank(t, rank, pid);
	add(t, " has ");
	add_value(t, field, value);
}

/* Words of lists, which say what differs. False: they are other words. */
static bool add_lists(struct text *t, const ncclsvc_status *st)
{
	const char *a = agreed_name(st->value_a), *b = agreed_name(st->value_b);
	if (!a || !b || st->field != NCCLSVC_FIELD_AGREEMENT)
		return false;
	const bool same = agreed_of(st->value_a) == agreed_of(st->value_b);
	if (!same)
		add(t, "mode differs: ");
	else if (agreed_of(st->value_a) == AGREED_PLANNED)
		add(t, "the place in the plan differs: ");
	else
		add(t, "types or shapes of the tensors differ: ");
	add_rank(t, st->rank_a, st->pid_a);
	if (same)
		add(t, " and ");
	else
		add(t, " has %s, ", a);
	add_rank(t, st->rank_b, st->pid_b);
	add(t, same ? ", each with %s" : " has %s", b);
	return true;
}

char *svc_status_reason(const ncclsvc_status *st, char *buf, size_t size)
{
	struct text t = {buf, size};
	char ending[SVC_ENDING_BYTES];
	if (size)
		buf[0] = '\0';
	if (st->field == NCCLSVC_FIELD_REFUSAL && st->rank_a >= 0) {
		add_refusal(&t, st);
		return buf;
	}
	switch (st->result) {
	case NCCLSVC_MISMATCH:
		if (st->rank_a < 0 && st->rank_b < 0) {
			add(&t, "%s", svc_result_meaning(st->result));
			break;
		}
		if (add_lists(&t, st))
			break;
		if (st->field == NCCLSVC_FIELD_ORDER)
			add(&t, "every member waits for another: ");
		else
			add(&t, "%s differs: ", svc_field_name(st->field));
		if (st->missing_count == 1 && st->missing[0] == st->rank_b) {
			add_side(&t, st->field, st->rank_b, st->pid_b, st->value_b);
			add(&t, ", all others have ");
			add_value(&t, st->field, st->value_a);
			break;
		}
		add_side(&t, st->field, st->rank_a, st->pid_a, st->value_a);
		add(&t, ", ");
		add_side(&t, st->field, st->rank_b, st->pid_b, st->value_b);
		break;
	case NCCLSVC_PEER_GONE:
		if (st->rank_a < 0 && st->field == NCCLSVC_FIELD_NODE) {
			add_node(&t, st);
			add(&t, " is gone, which kept order between the nodes; rejoin the "
				"communicator");
			break;
		}
		if (st->rank_a < 0) {
			add(&t, "a member has ended; rejoin the communicator");
			break;
		}
		if (st->field == NCCLSVC_FIELD_NODE) {
			add_node(&t, st);
			add(&t, " is gone or cut off, and with it ");
		}
		add_rank(&t, st->rank_a, st->pid_a);
		if (st->field == NCCLSVC_FIELD_NONE)
			add_address(&t, " of node ", st->value_b);
		if (st->field != NCCLSVC_FIELD_NODE)
			add(&t, " %s%s", svc_ending_text(st->ending, st->ending_code, ending),
			    st->follows ? " after an earlier failure" : "");
		add(&t, "; rejoin the communicator");
		break;
	case NCCLSVC_WORKER_LOST:
		if (st->pid_b)
			add(&t, "the worker of gpu%llu (pid %d)", (unsigned long long)st->value_a,
			    st->pid_b);
		else
			add(&t, "the GPU worker");
		if (st->rank_a >= 0)
			add(&t, ", which serves rank %d,", st->rank_a);
		add(&t, " was lost");
		break;
	case NCCLSVC_TIMEOUT:
		if (st->field == NCCLSVC_FIELD_NODE) {
			add_node(&t, st);
			add(&t, " does not answer");
			break;
		}
		add(&t, "the deadline passed");
		if (st->field == NCCLSVC_FIELD_GROUP) {
			add(&t, ": all ranks have submitted it, but not all that is in one task "
				"group with it");
		} else if (st->missing_count) {
			add(&t, " waiting for ");
			add_missing(&t, st);
		} else if (st->started_ns) {
			add(&t, " while it ran");
		}
		if (st->rank_a >= 0) {
			add(&t, "; it was set by ");
			/* Where a rank is missing, only its own process is of interest. */
			add_rank(&t, st->rank_a, st->missing_count ? 0 : st->pid_a);
		}
		break;
	case NCCLSVC_CANCELLED:
		if (st->field == NCCLSVC_FIELD_PLAN && st->rank_a >= 0) {
			add_rank(&t, st->rank_a, st->pid_a);
			add(&t, " has terminated its plan");
			break;
		}
		add(&t, "cancelled on request");
		if (st->pid_a > 0)
			add(&t, " of pid %d", st->pid_a);
		break;
	case NCCLSVC_LIMIT:
		if (st->field == NCCLSVC_FIELD_USER_TASKS) {
			add(&t,
			    "user %llu has %llu tasks pending, the most that one user may have "
			    "(user_tasks_max)",
			    (unsigned long long)st->value_a, (unsigned long long)st->value_b);
			break;
		}
		if (st->field == NCCLSVC_FIELD_TASKS) {
			add(&t,
			    "the daemon's limit of pending tasks is reached (tasks_max); user "
			    "%llu has most of them, %llu",
			    (unsigned long long)st->value_a, (unsigned long long)st->value_b);
			break;
		}
		__attribute__((fallthrough));
	default:
		add(&t, "%s", svc_result_meaning(st->result));
	}
	return buf;
}

char *svc_status_sentence(const ncclsvc_status *st, char *buf, size_t size)
{
	struct text t = {buf, size};
	if (size)
		buf[0] = '\0';
	add(&t, "%s: ", svc_result_name(st->result));
	svc_status_reason(st, t.at, t.left);
	return buf;
}

void svc_uuid_text(const uint8_t u[16], char text[SVC_UUID_TEXT])
{
	snprintf(text, SVC_UUID_TEXT,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
		 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
		 u[14], u[15]);
}

static bool is_plain(char c)
{
	return c >= ' ' && c <= '~';
}

bool svc_label_ok(const char *label, size_t size)
{
	size_t n = 0;
	while (n < size && is_plain(label[n]))
		n++;
	if (n == size)
		return false;
	while (n < size && !label[n])
		n++;
	return n == size;
}

char *svc_label_copy(char *to, size_t size, const char *from)
{
	memset(to, 0, size);
	for (size_t i = 0; i + 1 < size && from[i]; i++)
		to[i] = is_plain(from[i]) ? from[i] : '?';
	return to;
}

const char *svc_label_quote(const char label[NCCLSVC_LABEL_BYTES], char text[SVC_QUOTED_BYTES])
{
	text[0] = '\0';
	if (label[0])
		snprintf(text, SVC_QUOTED_BYTES, " \"%.*s\"", NCCLSVC_LABEL_BYTES - 1, label);
	return text;
}

bool svc_socket_path(const char *path, char *to, size_t size)
{
	char user[256];
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	if (!path)
		path = getenv("NCCLSVC_SOCKET");
	if (path && !*path)
		path = NULL;
	if (!path && runtime && *runtime) {
		const int n = snprintf(user, sizeof(user), "%s/ncclsvc/ncclsvcd.sock", runtime);
		if (n > 0 && (size_t)n < sizeof(user) && (size_t)n < size && !access(user, F_OK))
			path = user;
	}
	const int n = snprintf(to, size, "%s", path ? path : "/run/ncclsvc/ncclsvcd.sock");
	return n >= 0 && (size_t)n < size;
}

bool svc_admin_path(const char *socket, char *path, size_t size)
{
	const char *slash = strrchr(socket, '/'), *name = slash ? slash + 1 : socket;
	const int n = strcmp(name, "ncclsvcd.sock") != 0 ? snprintf(path, size, "%s.admin", socket)
							 : snprintf(path, size, "%.*sadmin.sock",
								    (int)(name - socket), socket);
	return n >= 0 && (size_t)n < size;
}
