/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child_process.h"

/* After the first failure: time for other ranks to report theirs, so that the cause is named, not
 * its consequence. */
#define AFTERMATH_MS 300

static bool is_consequence(const struct member *m)
{
	return m->reply.result == NCCLSVC_PEER_GONE || m->reply.result == NCCLSVC_CANCELLED;
}

/* Reports a member that died first; otherwise the first error that is not explained by another
 * rank's end. */
static void explain_failure(struct ranks *ranks)
{
	const struct member *worst = NULL;
	for (uint32_t i = 0; i < ranks->n; i++) {
		struct member *m = &ranks->members[i];
		if (m->fd < 0) {
			char how[96] = "closed its connection";
			int status;
			if (!ranks->mpirun && m->pid > 0 && wait_child(m->pid, 1000, &status)) {
				describe_status(status, how, sizeof(how));
				m->pid = 0;
			}
			complain("%s %u %s", ranks->what, i, how);
			return;
		}
		if (m->replied && m->reply.result &&
		    (!worst || (is_consequence(worst) && !is_consequence(m))))
			worst = m;
	}
	if (worst)
		complain("%s %u (pid %d): %.*s", ranks->what, (unsigned)(worst - ranks->members),
			 (int)worst->pid, COMMAND_TEXT_BYTES, worst->reply.text);
}

static void complain_missing(const struct ranks *ranks)
{
	char who[256] = "";
	size_t at = 0;
	for (uint32_t i = 0; i < ranks->n && at < sizeof(who) - 16; i++) {
		if (!ranks->members[i].replied)
			at += (size_t)snprintf(who + at, sizeof(who) - at, " %u", i);
	}
	complain("no answer within %d s from %s%s; --timeout sets how long to wait",
		 ranks->timeout_ms / 1000, ranks->what, who);
}

/* Reads one member's reply. False: this member has failed. */
static bool read_reply(struct member *m)
{
	ssize_t n = recv(m->fd, &m->reply, sizeof(m->reply), MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n != (ssize_t)sizeof(m->reply)) {
		close(m->fd);
		m->fd = -1;
	} else {
		m->reply.text[COMMAND_TEXT_BYTES - 1] = '\0';
		m->replied = true;
	}
	return m->fd >= 0 && m->reply.result == 0;
}

/* True: all have replied successfully. On false, *failed distinguishes a failure from the deadline.
 */
static bool gather(struct ranks *ranks, uint64_t end, bool *failed)
{
	struct pollfd fds[PERF_RANKS_MAX];
	uint32_t index[PERF_RANKS_MAX];
	for (;;) {
		nfds_t n = 0;
		for (uint32_t i = 0; i < ranks->n; i++) {
			if (ranks->members[i].replied || ranks->members[i].fd < 0)
				continue;
			fds[n] = (struct pollfd){.fd = ranks->members[i].fd, .events = POLLIN};
			index[n++] = i;
		}
		uint64_t now = perf_now_ns();
		if (n == 0)
			return !*failed;
		if (now >= end || caught_signal())
			return false;
		uint64_t left_ms = (end - now) / 1000000 + 1;
		if (poll(fds, n, left_ms < 1000 ? (int)left_ms : 1000) <= 0)
			continue;
		for (nfds_t k = 0; k < n; k++) {
			if (!fds[k].revents || read_reply(&ranks->members[index[k]]))
				continue;
			uint64_t soon = perf_now_ns() + AFTERMATH_MS * UINT64_C(1000000);
			end = !*failed && soon < end ? soon : end;
			*failed = true;
		}
	}
}

bool ranks_collect(struct ranks *ranks)
{
	bool failed = false;
	uint64_t end = perf_now_ns() + (uint64_t)ranks->timeout_ms * 1000000;
	if (gather(ranks, end, &failed))
		return true;
	if (caught_signal())
		return false;
	if (failed)
		explain_failure(ranks);
	else
		complain_missing(ranks);
	if (ranks->log[0])
		show_tail(ranks->log);
	return false;
}

void ranks_tell(struct ranks *ranks, uint32_t first, uint32_t n, const struct command *command)
{
	for (uint32_t i = first; i < first + n; i++) {
		ranks->members[i].replied = false;
		/* gather notices a member that is gone. */
		if (ranks->members[i].fd >= 0)
			(void)message_send(ranks->members[i].fd, command, sizeof(*command));
	}
}

bool ranks_do(struct ranks *ranks, const struct command *command)
{
	ranks_tell(ranks, 0, ranks->n, command);
	return ranks_collect(ranks);
}

double ranks_mean(const struct ranks *ranks, size_t field)
{
	double sum = 0;
	for (uint32_t i = 0; i < ranks->n; i++)
		sum += (double)*(const uint64_t *)((const char *)&ranks->members[i].reply + field);
	return sum / ranks->n;
}

uint64_t ranks_wrong(const struct ranks *ranks)
{
	uint64_t wrong = 0;
	for (uint32_t i = 0; i < ranks->n; i++)
		wrong += ranks->members[i].reply.wrong;
	return wrong;
}

static bool fork_member(struct ranks *ranks, uint32_t member, rank_main_fn *run, void *arg)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		complain("socketpair: %s", strerror(errno));
		return false;
	}
	pid_t pid = fork_child();
	if (pid == 0) {
		for (uint32_t i = 0; i < member; i++)
			close(ranks->members[i].fd);
		close(pair[0]);
		int status = run(arg, member, pair[1]);
		close(pair[1]);
		/* The child must not flush the parent's buffered output. */
		_exit(status);
	}
	close(pair[1]);
	if (pid < 0) {
		complain("fork: %s", strerror(errno));
		close(pair[0]);
		return false;
	}
	ranks->members[member] = (struct member){.fd = pair[0], .pid = pid};
	return true;
}

bool ranks_fork(struct ranks *ranks, const char *what, uint32_t n, rank_main_fn *run, void *arg,
		int timeout_ms)
{
	*ranks = (struct ranks){.what = what, .timeout_ms = timeout_ms + 5000, .grace_ms = 500};
	ranks->members = calloc(n, sizeof(*ranks->members));
	if (!ranks->members) {
		complain("out of memory");
		return false;
	}
	for (; ranks->n < n; ranks->n++) {
		if (!fork_member(ranks, ranks->n, run, arg))
			return false;
	}
	return ranks_collect(ranks);
}

static int run_rank(void *arg, uint32_t member, int fd)
{
	struct service_options *options = arg;
	options->rank = (int)member;
	return options->gpus ? service_cuda_main(options, fd) : service_host_main(options, fd);
}

bool ranks_start_service(struct ranks *ranks, const struct service_options *options, uint32_t n)
{
	struct service_options o = *options;
	o.nranks = (int)n;
	bool good = ranks_fork(ranks, "rank", n, run_rank, &o, options->timeout_ms);
	if (options->gpus)
		ranks->grace_ms = GPU_GRACE_MS;
	ranks->service = o;
	return good && ranks_new_id(ranks, ranks->id);
}

static int run_pingpong(void *arg, uint32_t member, int fd)
{
	(void)arg, (void)member;
	return pingpong_main(fd);
}

bool ranks_start_pingpong(struct ranks *ranks, uint32_t n, int timeout_ms)
{
	bool good = ranks_fork(ranks, "ping-pong", n, run_pingpong, NULL, timeout_ms);
	snprintf(ranks->library, sizeof(ranks->library), "SOCK_SEQPACKET ping-pong");
	return good;
}

bool ranks_join(struct ranks *ranks)
{
	struct command command = {.kind = COMMAND_JOIN};
	memcpy(command.id, ranks->id, sizeof(command.id));
	if (!ranks_do(ranks, &command))
		return false;
	ranks->start_ms = ranks_mean(ranks, REPLY(elapsed_ns)) / 1e6;
	for (uint32_t i = 0; i < ranks->n; i++)
		ranks->start_bytes += (double)ranks->members[i].reply.gpu_bytes / ranks->n;
	return true;
}

bool ranks_buffers(struct ranks *ranks, uint64_t bytes)
{
	struct command buffers = {.kind = COMMAND_BUFFERS, .bytes = bytes};
	return ranks_do(ranks, &buffers);
}

bool ranks_new_id(const struct ranks *ranks, uint8_t id[NCCLSVC_ID_BYTES])
{
	struct service_options first = ranks->service;
	ncclsvc_session *session;
	ncclsvc_unique_id made;
	first.no_ring = true;
	first.rank = 0;
	ncclsvc_result r = service_open(&first, &session);
	if (!r) {
		r = ncclsvc_unique_id_request(session, &made);
		ncclsvc_close(session);
	}
	if (r)
		complain("can't make a communicator id: %s", ncclsvc_last_error());
	else
		memcpy(id, made.bytes, NCCLSVC_ID_BYTES);
	return !r;
}

void ranks_stop(struct ranks *ranks)
{
	struct command quit = {.kind = COMMAND_QUIT};
	for (uint32_t i = 0; i < ranks->n; i++) {
		if (ranks->members[i].fd < 0)
			continue;
		(void)send(ranks->members[i].fd, &quit, sizeof(quit), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(ranks->members[i].fd);
	}
	int status;
	for (uint32_t i = 0; i < ranks->n && !ranks->mpirun; i++) {
		/* After a failure, a rank in the middle of a command is not waited for. */
		if (ranks->members[i].pid > 0 &&
		    !wait_child(ranks->members[i].pid, ranks->grace_ms, &status))
			stop_child(ranks->members[i].pid, false, 200);
	}
	if (ranks->mpirun) {
		if (!wait_child(ranks->mpirun, 5000, &status))
			stop_child(ranks->mpirun, true, 3000);
	}
	free(ranks->members);
	*ranks = (struct ranks){0};
}
