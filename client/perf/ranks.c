/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process.h"

/* After the first failure: time for others to say what they saw, so that the cause is named and not
 * its consequence. */
#define AFTERMATH_MS 300

static bool is_consequence(const struct crew_member *m)
{
	return m->reply.result == NCCLSVC_PEER_GONE || m->reply.result == NCCLSVC_CANCELLED;
}

/* Who died comes first, then the first error that no other rank's end explains. */
static void explain_failure(struct crew *crew)
{
	const struct crew_member *worst = NULL;
	for (uint32_t i = 0; i < crew->n; i++) {
		struct crew_member *m = &crew->members[i];
		if (m->fd < 0) {
			char how[96] = "closed its connection";
			int status;
			if (!crew->leader && m->pid > 0 && wait_child(m->pid, 1000, &status)) {
				describe_status(status, how, sizeof(how));
				m->pid = 0;
			}
			complain("%s %u %s", crew->what, i, how);
			return;
		}
		if (m->replied && m->reply.result &&
		    (!worst || (is_consequence(worst) && !is_consequence(m))))
			worst = m;
	}
	if (worst)
		complain("%s %u (pid %d): %.*s", crew->what, (unsigned)(worst - crew->members),
			 (int)worst->pid, JOB_TEXT_BYTES, worst->reply.text);
}

static void complain_missing(const struct crew *crew)
{
	char who[256] = "";
	size_t at = 0;
	for (uint32_t i = 0; i < crew->n && at < sizeof(who) - 16; i++) {
		if (!crew->members[i].replied)
			at += (size_t)snprintf(who + at, sizeof(who) - at, " %u", i);
	}
	complain("no answer within %d s from %s%s; --timeout sets how long to wait",
		 crew->timeout_ms / 1000, crew->what, who);
}

/* Reads one member's reply. False: that member has failed. */
static bool read_reply(struct crew_member *m)
{
	ssize_t n = recv(m->fd, &m->reply, sizeof(m->reply), MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n != (ssize_t)sizeof(m->reply)) {
		close(m->fd);
		m->fd = -1;
	} else {
		m->reply.text[JOB_TEXT_BYTES - 1] = '\0';
		m->replied = true;
	}
	return m->fd >= 0 && m->reply.result == 0;
}

/* True: all have replied well. On false, *failed tells a failure from the deadline. */
static bool gather(struct crew *crew, uint64_t end, bool *failed)
{
	struct pollfd fds[PERF_RANKS_MAX];
	uint32_t index[PERF_RANKS_MAX];
	for (;;) {
		nfds_t n = 0;
		for (uint32_t i = 0; i < crew->n; i++) {
			if (crew->members[i].replied || crew->members[i].fd < 0)
				continue;
			fds[n] = (struct pollfd){.fd = crew->members[i].fd, .events = POLLIN};
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
			if (!fds[k].revents || read_reply(&crew->members[index[k]]))
				continue;
			uint64_t soon = perf_now_ns() + AFTERMATH_MS * UINT64_C(1000000);
			end = !*failed && soon < end ? soon : end;
			*failed = true;
		}
	}
}

bool crew_collect(struct crew *crew)
{
	bool failed = false;
	uint64_t end = perf_now_ns() + (uint64_t)crew->timeout_ms * 1000000;
	if (gather(crew, end, &failed))
		return true;
	if (caught_signal())
		return false;
	if (failed)
		explain_failure(crew);
	else
		complain_missing(crew);
	if (crew->log[0])
		show_tail(crew->log);
	return false;
}

void crew_tell(struct crew *crew, uint32_t first, uint32_t n, const struct job *job)
{
	for (uint32_t i = first; i < first + n; i++) {
		crew->members[i].replied = false;
		/* A member that went is found by gather. */
		if (crew->members[i].fd >= 0)
			(void)job_send(crew->members[i].fd, job, sizeof(*job));
	}
}

bool crew_do(struct crew *crew, const struct job *job)
{
	crew_tell(crew, 0, crew->n, job);
	return crew_collect(crew);
}

double crew_ns(const struct crew *crew, uint64_t iters)
{
	double sum = 0;
	for (uint32_t i = 0; i < crew->n; i++)
		sum += (double)crew->members[i].reply.elapsed_ns;
	return sum / crew->n / (double)(iters ? iters : 1);
}

double crew_cpu_ns(const struct crew *crew, uint64_t iters)
{
	double sum = 0;
	for (uint32_t i = 0; i < crew->n; i++)
		sum += (double)crew->members[i].reply.cpu_ns;
	return sum / crew->n / (double)(iters ? iters : 1);
}

uint64_t crew_wrong(const struct crew *crew)
{
	uint64_t wrong = 0;
	for (uint32_t i = 0; i < crew->n; i++)
		wrong += crew->members[i].reply.wrong;
	return wrong;
}

static bool fork_member(struct crew *crew, uint32_t member, crew_main *run, void *arg)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		complain("socketpair: %s", strerror(errno));
		return false;
	}
	pid_t pid = fork_child();
	if (pid == 0) {
		for (uint32_t i = 0; i < member; i++)
			close(crew->members[i].fd);
		close(pair[0]);
		int status = run(arg, member, pair[1]);
		close(pair[1]);
		/* The coordinator's memory and buffered output are not the child's. */
		_exit(status);
	}
	close(pair[1]);
	if (pid < 0) {
		complain("fork: %s", strerror(errno));
		close(pair[0]);
		return false;
	}
	crew->members[member] = (struct crew_member){.fd = pair[0], .pid = pid};
	return true;
}

bool crew_fork(struct crew *crew, const char *what, uint32_t n, crew_main *run, void *arg,
	       int timeout_ms)
{
	*crew = (struct crew){.what = what, .timeout_ms = timeout_ms + 5000, .grace_ms = 500};
	crew->members = calloc(n, sizeof(*crew->members));
	if (!crew->members) {
		complain("out of memory");
		return false;
	}
	for (; crew->n < n; crew->n++) {
		if (!fork_member(crew, crew->n, run, arg))
			return false;
	}
	return crew_collect(crew);
}

static int run_rank(void *arg, uint32_t member, int fd)
{
	struct rank_options *options = arg;
	options->rank = (int)member;
	return rank_main(options, fd);
}

bool crew_start(struct crew *crew, const struct rank_options *options, uint32_t n)
{
	struct rank_options o = *options;
	if (!crew_new_id(o.id.bytes))
		return false;
	o.nranks = (int)n;
	return crew_fork(crew, "rank", n, run_rank, &o, options->timeout_ms);
}

static int run_rank_cuda(void *arg, uint32_t member, int fd)
{
	struct rank_options *options = arg;
	options->rank = (int)member;
	return rank_cuda_main(options, fd);
}

bool crew_start_cuda(struct crew *crew, const struct rank_options *options, uint32_t n)
{
	struct rank_options o = *options;
	o.nranks = (int)n;
	bool good = crew_fork(crew, "rank", n, run_rank_cuda, &o, options->timeout_ms);
	crew->grace_ms = CREW_GPU_GRACE_MS;
	return good && crew_new_id(crew->id);
}

bool crew_init(struct crew *crew)
{
	struct job job = {.kind = JOB_INIT};
	memcpy(job.id, crew->id, sizeof(job.id));
	if (!crew_do(crew, &job))
		return false;
	crew->start_ms = crew_ns(crew, 1) / 1e6;
	for (uint32_t i = 0; i < crew->n; i++)
		crew->start_bytes += (double)crew->members[i].reply.gpu_bytes / crew->n;
	return true;
}

bool crew_buffers(struct crew *crew, uint64_t bytes)
{
	struct job buffers = {.kind = JOB_BUFFERS, .bytes = bytes};
	return crew_do(crew, &buffers);
}

bool crew_new_id(uint8_t id[NCCLSVC_ID_BYTES])
{
	ncclsvc_unique_id made;
	if (ncclsvc_unique_id_create(&made)) {
		complain("can't make a communicator id: %s", ncclsvc_last_error());
		return false;
	}
	memcpy(id, made.bytes, NCCLSVC_ID_BYTES);
	return true;
}

void crew_stop(struct crew *crew)
{
	struct job quit = {.kind = JOB_QUIT};
	for (uint32_t i = 0; i < crew->n; i++) {
		if (crew->members[i].fd < 0)
			continue;
		(void)send(crew->members[i].fd, &quit, sizeof(quit), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(crew->members[i].fd);
	}
	int status;
	for (uint32_t i = 0; i < crew->n && !crew->leader; i++) {
		/* A rank in the middle of a job after a failure is not waited for. */
		if (crew->members[i].pid > 0 &&
		    !wait_child(crew->members[i].pid, crew->grace_ms, &status))
			stop_child(crew->members[i].pid, false, 200);
	}
	if (crew->leader) {
		if (!wait_child(crew->leader, 5000, &status))
			stop_child(crew->leader, true, 3000);
	}
	free(crew->members);
	*crew = (struct crew){0};
}
