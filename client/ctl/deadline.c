/* SPDX-License-Identifier: Apache-2.0 */
#include "deadline.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/args.h"
#include "base/process.h"
#include "base/snapshot.h"
#include "base/text.h"
#include "proto/names.h"
#include "screen.h"
#include "why/why.h"

#define LOOK_NS UINT64_C(2000000000)

/* The library may wait for the daemon in any call: another thread keeps the time. */
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool runs;	     /* the thread */
	uint64_t begin, end; /* 0: no deadline */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
} clocked = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The process that listens at the socket; 0: unknown. */
static int32_t listener(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {0};
	socklen_t size = sizeof(peer);
	const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	memcpy(address.sun_path, path, sizeof(address.sun_path));
	if (s < 0 || connect(s, (const struct sockaddr *)&address, sizeof(address)) ||
	    getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		peer.pid = 0;
	if (s >= 0)
		close(s);
	return peer.pid == 1 ? 0 : peer.pid; /* systemd made the socket */
}

/* Says what the daemon's process is doing; true: it will not answer before somebody lets it run. */
static bool look(uint64_t silent_ns)
{
	struct processes all = {0};
	struct text out = TEXT_INIT(STDERR_FILENO);
	struct process p = {.pid = listener(clocked.path)};
	if (p.pid > 0)
		p = *process_examine(&all, p.pid);
	text_add(&out, "ncclsvc-ctl: ");
	why_tell_daemon(&p, silent_ns, &out);
	text_char(&out, '\n');
	screen_leave();
	text_flush(&out, true);
	text_free(&out);
	processes_free(&all);
	return process_is_halted(&p);
}

static void *keep_time(void *unused)
{
	bool looked = false;
	uint64_t begin = 0;
	(void)unused;
	pthread_mutex_lock(&clocked.mutex);
	for (;;) {
		const uint64_t now = snapshot_now_ns();
		if (clocked.begin != begin) {
			begin = clocked.begin;
			looked = false;
		}
		uint64_t next = begin + LOOK_NS;
		if (looked || next > clocked.end)
			next = clocked.end;
		if (!clocked.end) {
			pthread_cond_wait(&clocked.changed, &clocked.mutex);
		} else if (now < next) {
			struct timespec t = {.tv_sec = (time_t)(next / 1000000000),
					     .tv_nsec = (long)(next % 1000000000)};
			pthread_cond_timedwait(&clocked.changed, &clocked.mutex, &t);
		} else if (looked || look(now - begin) || now >= clocked.end) {
			break;
		} else {
			looked = true;
		}
	}
	if (looked)
		fputs("ncclsvc-ctl: ncclsvcd did not answer in time; a longer --timeout waits "
		      "longer\n",
		      stderr);
	_exit(EXIT_UNREACHABLE);
}

void deadline_start(uint64_t ns, const char *socket)
{
	pthread_condattr_t monotonic;
	pthread_t thread;
	pthread_mutex_lock(&clocked.mutex);
	if (!svc_socket_path(socket, clocked.path, sizeof(clocked.path)))
		clocked.path[0] = '\0';
	clocked.begin = snapshot_now_ns();
	clocked.end = clocked.begin + ns;
	if (!clocked.runs) {
		pthread_condattr_init(&monotonic);
		pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
		pthread_cond_init(&clocked.changed, &monotonic);
		pthread_condattr_destroy(&monotonic);
		clocked.runs = !pthread_create(&thread, NULL, keep_time, NULL);
		if (clocked.runs)
			pthread_detach(thread);
	}
	pthread_cond_signal(&clocked.changed);
	pthread_mutex_unlock(&clocked.mutex);
}

void deadline_stop(void)
{
	pthread_mutex_lock(&clocked.mutex);
	clocked.end = 0;
	pthread_mutex_unlock(&clocked.mutex);
}

int deadline_ms(uint64_t ns)
{
	uint64_t ms = ns / 1000000;
	return ms > INT_MAX ? INT_MAX : ms ? (int)ms : 1;
}
