/* SPDX-License-Identifier: Apache-2.0 */
#include "watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/timings.h"
#include "build_config.h"
#include "comm/peer/comm_peer.h"
#include "list_parts.h"
#include "proto/names.h"
#include "proto/printable.h"

#define RANKS_PER_LOOK 16384
#define FIELDS	       8 /* of a line: comm, seq, graph, op, ranks, culprits, cause, text */

uint64_t waits_since(const struct communicator *m, uint32_t rank, uint64_t now)
{
	struct peer_operation op;
	struct peer_range range;
	uint64_t since_ns = 0;
	if (m->progress && load(&m->progress[rank].submitted) > load(&m->progress[rank].completed))
		since_ns = load(&m->progress[rank].head_ns);
	if (m->progress && peer_operations(m, rank, &range) &&
	    peer_operation(m, rank, &range, 0, &op))
		since_ns = earlier(since_ns, peer_operation_since(&op, now));
	return since_ns;
}

/* When the oldest wait of the communicator began that a look from here can see; 0: none. */
static uint64_t oldest_wait(const struct communicator *m, uint64_t now)
{
	const bool joins = m->life.state == NCCLSVC_EPOCH_FORMING && m->joining;
	uint64_t oldest = 0;
	for (uint32_t k = 0; (joins || epoch_runs(&m->life)) && k < m->nranks; k++) {
		if (!joins)
			oldest = earlier(oldest, waits_since(m, k, now));
		else if (m->members[k].session && m->members[k].state == NCCLSVC_MEMBER_JOINING)
			oldest = earlier(oldest, m->members[k].since_ns);
	}
	return oldest;
}

/* ---- What is over ---- */

/* Why the epoch, or the attempt to join, ended: the last cause that ended it. */
static const char *cause_of(const struct communicator *m)
{
	struct epoch_step steps[NCCLSVC_EPOCH_STEPS];
	const uint32_t n = epoch_last_steps(&m->life, steps);
	uint32_t i = 0;
	while (i + 1 < n &&
	       (steps[i].cause == NCCLSVC_CAUSE_RELEASED || steps[i].cause == NCCLSVC_CAUSE_JOINED))
		i++;
	return n ? svc_epoch_cause_name(steps[i].cause) : "unknown";
}

static void outcome(const struct watched *x, const struct communicator *m, char *text, size_t size)
{
	char sentence[SVC_TEXT_BYTES];
	if (!m)
		snprintf(text, size, "has ended: the communicator is gone");
	else if (!x->op[0] && (epoch_runs(&m->life) || m->life.state == NCCLSVC_EPOCH_ACQUIRING))
		snprintf(text, size, "is over: all ranks have joined");
	else if (!x->op[0])
		snprintf(text, size, "is over: no rank waits in JOIN any more (%s)", cause_of(m));
	else if (x->failure.result)
		snprintf(text, size, "has failed: %s",
			 svc_status_sentence(&x->failure, sentence, sizeof(sentence)));
	else if (m->epoch != x->epoch || !epoch_runs(&m->life))
		snprintf(text, size, "has failed: its epoch is over (%s)", cause_of(m));
	else
		snprintf(text, size, "has completed");
}

static void log_over(const struct watched *x, const struct communicator *m, uint64_t now)
{
	char how[SVC_TEXT_BYTES + 32], what[64] = "its JOIN", label[NCCLSVC_NAME_BYTES] = "";
	outcome(x, m, how, sizeof(how));
	if (x->op[0])
		snprintf(what, sizeof(what), "%s #%" PRIu64 "%s", x->op, x->seq,
			 x->graph ? " of a CUDA graph" : "");
	if (m)
		snprintf(label, sizeof(label), "%s", m->label);
	log_warning("communicator %s (id %" PRIu64 "): %s, which waited %" PRIu64 " s%s%s, %s",
		    label[0] ? label : "?", x->comm, what, since(now, x->since_ns) / 1000000000,
		    !x->culprits[0]	       ? ""
		    : strchr(x->culprits, ',') ? " for ranks "
					       : " for rank ",
		    x->culprits, how);
}

static const struct communicator *comm_of(const struct watcher *w, const struct watched *x)
{
	const struct communicator *m = w->server->comms.comm_by_slot[x->slot];
	return m && m->uid == x->comm ? m : NULL;
}

static bool still_waits(const struct watched *x, const struct communicator *m, uint64_t now)
{
	if (!m || x->failure.result) /* after which it stays, until the others have come */
		return false;
	if (!x->op[0])
		return m->life.state == NCCLSVC_EPOCH_FORMING && m->joining;
	return m->epoch == x->epoch && epoch_runs(&m->life) &&
	       waits_since(m, (uint32_t)x->rank, now) == x->since_ns;
}

static void end_watched(struct watcher *w, uint64_t now)
{
	for (uint32_t i = 0; i < w->nwatched;) {
		struct watched *x = &w->watched[i];
		const struct communicator *m = comm_of(w, x);
		if (still_waits(x, m, now)) {
			i++;
			continue;
		}
		log_over(x, m, now);
		*x = w->watched[--w->nwatched];
	}
}

void watcher_failed(struct watcher *w, const struct communicator *m, uint64_t seq,
		    const ncclsvc_status *status)
{
	for (uint32_t i = 0; i < w->nwatched; i++)
		if (w->watched[i].comm == m->uid && w->watched[i].seq == seq)
			w->watched[i].failure = *status;
}

/* ---- What ncclsvc-ctl says ---- */

static bool number(const char *text, uint64_t *value)
{
	char *end;
	errno = 0;
	*value = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno;
}

static struct communicator *find(const struct server *s, uint64_t uid)
{
	struct communicator *m = s->comms.comms;
	while (m && m->uid != uid)
		m = m->hh.next;
	return m;
}

/* Is it logged already? Those from `known` on are of this answer: one wait can have two reasons. */
static bool is_known(const struct watcher *w, const struct watched *x, uint32_t known)
{
	for (uint32_t i = 0; i < known; i++) {
		const struct watched *o = &w->watched[i];
		if (o->comm == x->comm && o->epoch == x->epoch && o->seq == x->seq &&
		    o->graph == x->graph && !strcmp(o->op, x->op))
			return true;
	}
	return false;
}

/* Since when it waits, by the first of these ranks ("0,2,5") that waits here. False: none does. */
static bool find_wait(struct watched *x, const struct communicator *m, char *ranks, uint64_t now)
{
	uint64_t rank;
	for (char *text; (text = strsep(&ranks, ","));) {
		if (!number(text, &rank) || rank >= m->nranks)
			return false;
		x->rank = (int32_t)rank;
		x->since_ns =
			x->op[0] ? waits_since(m, (uint32_t)x->rank, now) : oldest_wait(m, now);
		if (x->since_ns && still_waits(x, m, now))
			return true;
	}
	return false;
}

/* Waits of other nodes' members alone are theirs to watch. */
static void take_finding(struct watcher *w, char *const fields[FIELDS], uint32_t known)
{
	struct watched x = {0};
	uint64_t graph;
	if (!number(fields[0], &x.comm) || !number(fields[1], &x.seq) ||
	    !number(fields[2], &graph) || graph > UINT32_MAX)
		return;
	const struct communicator *m = find(w->server, x.comm);
	if (!m)
		return;
	x.slot = m->slot;
	x.epoch = m->epoch;
	x.graph = (uint32_t)graph;
	svc_label_copy(x.op, sizeof(x.op), fields[3]);
	svc_label_copy(x.culprits, sizeof(x.culprits), fields[5]);
	if (is_known(w, &x, known) || !find_wait(&x, m, fields[4], clock_now()))
		return;
	log_warning("%s", svc_make_printable(fields[7], strlen(fields[7]) + 1));
	/* A second reason of one wait: that ends once. */
	if (!is_known(w, &x, w->nwatched) && w->nwatched < WATCHED_MAX)
		w->watched[w->nwatched++] = x;
}

static void take_answer(struct watcher *w)
{
	const uint32_t known = w->nwatched;
	char *at = w->text, *end;
	w->text[w->n] = '\0';
	while ((end = strchr(at, '\n'))) {
		char *fields[FIELDS], *rest = at;
		unsigned n = 0;
		*end = '\0';
		while (n < FIELDS && (fields[n] = strsep(&rest, "\t")))
			n++;
		if (n == FIELDS && !rest)
			take_finding(w, fields, known);
		at = end + 1;
	}
	if (w->nwatched) { /* their ends come sooner than the next look was planned */
		w->look_ns = clock_now() + WATCHER_LOOK_NS;
		loop_deadline(&w->server->loop, w->look_ns);
	}
}

/* ---- Running it ---- */

static void trouble(struct watcher *w, const char *why)
{
	if (!w->trouble_logged)
		log_warning("what is stuck cannot be logged: %s %s. Install ncclsvc-ctl there, or "
			    "set stuck_after = 0",
			    w->program, why);
	w->trouble_logged = true;
}

static void ended(struct watcher *w)
{
	char why[64];
	const bool full = w->n == WATCHER_TEXT_BYTES - 1;
	if (w->killed || (w->exit_code != 0 && w->exit_code != 3 && !full)) {
		snprintf(why, sizeof(why),
			 w->killed ? "has not answered in time"
				   : "has failed with exit code %" PRId64,
			 w->exit_code);
		if (!w->server->loop.closing)
			trouble(w, why);
	} else if (!w->server->loop.closing) {
		w->trouble_logged = false;
		take_answer(w);
	}
	free(w->text);
	w->text = NULL;
}

static void on_closed(uv_handle_t *handle)
{
	struct watcher *w = handle->data;
	w->server->loop.handles--;
	if (!--w->open)
		ended(w);
}

static void on_exit_of(uv_process_t *process, int64_t code, int signal)
{
	struct watcher *w = process->data;
	w->exit_code = signal ? 128 + signal : code;
	uv_close((uv_handle_t *)process, on_closed);
}

static void on_output_closed(uv_handle_t *handle)
{
	struct watcher *w = handle->data;
	close(w->output_fd);
	on_closed(handle);
}

static void stop_reading(struct watcher *w)
{
	if (!uv_is_closing((uv_handle_t *)&w->output))
		uv_close((uv_handle_t *)&w->output, on_output_closed);
}

/* Ends with the answer, or with the room for it. */
static void on_output(uv_poll_t *poll, int status, int events)
{
	struct watcher *w = poll->data;
	const size_t room = WATCHER_TEXT_BYTES - 1 - w->n;
	const ssize_t n = status < 0 ? -1 : read(w->output_fd, w->text + w->n, room);
	(void)events;
	if (n < 0 && !status && (errno == EAGAIN || errno == EINTR))
		return;
	w->n += n > 0 ? (size_t)n : 0;
	if (n <= 0 || (size_t)n == room)
		stop_reading(w);
}

static void kill_it(struct watcher *w)
{
	w->killed = true;
	if (!uv_is_closing((uv_handle_t *)&w->process))
		uv_process_kill(&w->process, SIGKILL);
	stop_reading(w);
}

/* Beside the daemon's own program, else where it is installed. */
static void find_program(char *program, size_t size)
{
	char own[PATH_MAX];
	const ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
	own[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(own, '/');
	if (slash) {
		*slash = '\0';
		const int length = snprintf(program, size, "%s/ncclsvc-ctl", own);
		if ((size_t)length < size && !access(program, X_OK))
			return;
	}
	snprintf(program, size, "%s/ncclsvc-ctl", NCCLSVC_BINDIR);
}

/* Starts it with its output in this pipe. Returns 0 or libuv's error. */
static int spawn(struct watcher *w, int output)
{
	struct server *s = w->server;
	char after[24], path[sizeof(s->config->socket)];
	char *argv[] = {w->program, "--socket", path,	   "--timeout", "8",
			"why",	    "--lines",	"--after", after,	NULL};
	uv_stdio_container_t stdio[] = {
		{.flags = UV_IGNORE},
		{.flags = UV_INHERIT_FD, .data.fd = output},
		{.flags = UV_IGNORE},
	};
	const uv_process_options_t options = {.exit_cb = on_exit_of,
					      .file = w->program,
					      .args = argv,
					      .stdio = stdio,
					      .stdio_count = 3};
	find_program(w->program, sizeof(w->program));
	snprintf(after, sizeof(after), "%d", s->config->stuck_after);
	snprintf(path, sizeof(path), "%s", s->path);
	const int error = uv_spawn(s->loop.uv, &w->process, &options);
	s->loop.handles++;
	w->open++;
	if (error)
		uv_close((uv_handle_t *)&w->process, on_closed);
	return error;
}

static void run(struct watcher *w, uint64_t now)
{
	struct server *s = w->server;
	int pipe[2];
	w->started_ns = now;
	w->text = malloc(WATCHER_TEXT_BYTES);
	if (!w->text || pipe2(pipe, O_CLOEXEC) < 0) {
		free(w->text);
		w->text = NULL;
		return;
	}
	w->due = w->killed = false;
	w->n = 0;
	w->output_fd = pipe[0];
	fcntl(pipe[0], F_SETFL, O_NONBLOCK);
	w->process.data = w->output.data = w;
	int error = uv_poll_init(s->loop.uv, &w->output, w->output_fd);
	if (error) {
		close(pipe[0]);
	} else {
		s->loop.handles++;
		w->open++;
		error = spawn(w, pipe[1]);
	}
	close(pipe[1]);
	if (!error) {
		uv_poll_start(&w->output, UV_READABLE, on_output);
		return;
	}
	trouble(w, uv_strerror(error));
	w->killed = true; /* there is no answer */
	if (w->open) {
		stop_reading(w);
	} else {
		free(w->text);
		w->text = NULL;
	}
}

/* ---- Looking ---- */

static uint64_t stuck_after_ns(const struct watcher *w)
{
	return (uint64_t)w->server->config->stuck_after * 1000000000;
}

/* Goes on with a round of all communicators. True: it is complete. Each wait is asked about once:
 * ncclsvc-ctl may well find that it is nobody's fault. */
static bool look(struct watcher *w, uint64_t now)
{
	const struct server *s = w->server;
	uint32_t left = RANKS_PER_LOOK;
	for (; w->slot < SVC_COMMS_MAX; w->slot++) {
		struct communicator *m = s->comms.comm_by_slot[w->slot];
		if (!m)
			continue;
		if (m->nranks > left && left < RANKS_PER_LOOK)
			return false;
		left -= m->nranks < left ? m->nranks : left;
		const uint64_t oldest = oldest_wait(m, now);
		if (!oldest || oldest == m->watched_ns)
			continue;
		if (oldest + stuck_after_ns(w) > now) {
			w->next_ns = earlier(w->next_ns, oldest + stuck_after_ns(w));
			continue;
		}
		m->watched_ns = oldest;
		w->due = true;
	}
	w->slot = 0;
	return true;
}

/* A wait that begins after a look is seen by the next one before it is due: so an idle daemon is
 * woken twice in stuck_after. */
static void look_and_plan(struct watcher *w, uint64_t now)
{
	const uint64_t soon = now + WATCHER_LOOK_NS;
	if (!w->slot)
		w->next_ns = now + stuck_after_ns(w) / 2;
	end_watched(w, now);
	const bool quiet = look(w, now) && !w->nwatched && w->next_ns > soon;
	w->look_ns = quiet ? w->next_ns : soon;
}

void watcher_begin(struct watcher *w, uint64_t now)
{
	if (!w->server->config->stuck_after || w->look_ns)
		return;
	w->look_ns = now + stuck_after_ns(w) / 2;
	loop_deadline(&w->server->loop, w->look_ns);
}

uint64_t watcher_expire(struct watcher *w, uint64_t now)
{
	struct server *s = w->server;
	if (!s->config->stuck_after || s->loop.closing)
		return 0;
	if (!s->sessions.all && !w->nwatched && !w->open) {
		w->look_ns = 0;
		w->due = false;
		return 0;
	}
	if (w->open && !w->killed && now >= w->started_ns + WATCHER_ANSWER_NS)
		kill_it(w);
	watcher_begin(w, now);
	if (now >= w->look_ns)
		look_and_plan(w, now);
	if (w->due && !w->open && (!w->started_ns || now >= w->started_ns + WATCHER_AGAIN_NS))
		run(w, now);
	if (w->open)
		return w->killed ? w->look_ns
				 : earlier(w->look_ns, w->started_ns + WATCHER_ANSWER_NS);
	return w->due ? earlier(w->look_ns, w->started_ns + WATCHER_AGAIN_NS) : w->look_ns;
}

void watcher_close(struct watcher *w)
{
	if (w->open)
		kill_it(w);
}
