/* SPDX-License-Identifier: Apache-2.0
 * ncclsvcd: start, signals, systemd, and shutdown. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/log.h"
#include "base/loop.h"
#include "base/memory_left.h"
#include "base/nofail.h"
#include "base/paths.h"
#include "base/timings.h"
#include "callbacks.h"
#include "channel/cluster.h"
#include "proto/names.h"
#include "proto/ncclsvc_types.h"
#include "proto/worker_protocol.h"
#include "server/config_sources.h"
#include "server/own_socket.h"
#include "server/server.h"
#include "worker/worker_main.h"

#define MIB (UINT64_C(1) << 20)

struct daemon {
	uv_loop_t loop;
	struct config config;
	int argc;
	char **argv;
	char **envp;
	struct cluster *cluster; /* NULL: one node */
	struct server *server;
	struct own_socket socket, admin;
	char admin_path[sizeof(((struct listen_socket *)0)->path)];
	char path[sizeof(((struct config *)0)->socket)]; /* of its socket: config's, with the node's
							    number inserted */
	uv_signal_t term, interrupt, hangup;
	uv_timer_t alive; /* keep-alive and watchdog */
	uv_timer_t end;	  /* deadline for draining, then for closing */
	bool answered;	  /* the scheduler has answered since the last keep-alive */
	bool ending;
	int exit_code;
};

static void tell_systemd(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

static void tell_status(struct daemon *d, const char *prefix)
{
	struct server_summary sum;
	char text[256];
	server_summarize(d->server, &sum);
	snprintf(text, sizeof(text),
		 "%sSTATUS=%s%u sessions, %u communicators; tasks: %llu pending, %llu done, %llu "
		 "failed",
		 prefix, d->ending ? "shutting down; " : "", sum.sessions, sum.comms,
		 (unsigned long long)sum.pending, (unsigned long long)sum.completed,
		 (unsigned long long)sum.failed);
	tell_systemd(text);
}

/* ---- Keep-alive: systemd is notified only while the scheduler makes progress ---- */

static void on_pong(void *arg)
{
	struct daemon *d = arg;
	d->answered = true;
	tell_status(d, "WATCHDOG=1\n");
}

static void on_alive(uv_timer_t *timer)
{
	struct daemon *d = timer->data;
	log_flush();
	if (!d->answered)
		log_error("the scheduler thread has not answered since the last keep-alive: tasks "
			  "may "
			  "be stuck. systemd restarts a daemon whose watchdog expires");
	d->answered = false;
	own_socket_check(&d->socket);
	own_socket_check(&d->admin);
	server_ping(d->server, on_pong, d);
}

static void start_keepalive(struct daemon *d)
{
	uint64_t ms = (uint64_t)d->config.keepalive_seconds * 1000;
#ifdef HAVE_SYSTEMD
	uint64_t watchdog_us = 0;
	if (sd_watchdog_enabled(0, &watchdog_us) > 0 && (!ms || watchdog_us / 2000 < ms))
		ms = watchdog_us / 2000;
#endif
	d->answered = true;
	if (ms)
		uv_timer_start(&d->alive, on_alive, ms, ms);
}

/* ---- Shutdown ---- */

static void close_own(uv_handle_t *handle)
{
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

static void finish(struct daemon *d)
{
	server_close(d->server, NCCLSVC_DAEMON_LOST, "the daemon has shut down");
	uv_stop(&d->loop);
}

static void on_drained(void *arg)
{
	struct daemon *d = arg;
	log_info("no task is pending any more: the daemon exits");
	finish(d);
}

static void on_end(uv_timer_t *timer)
{
	struct daemon *d = timer->data;
	struct server_summary sum;
	server_summarize(d->server, &sum);
	log_warning("%llu tasks were still pending after %d s: their clients get DAEMON_LOST",
		    (unsigned long long)sum.pending, d->config.drain_seconds);
	finish(d);
}

static void begin_end(struct daemon *d)
{
	d->ending = true;
	tell_systemd("STOPPING=1");
	tell_status(d, "");
	uv_timer_start(&d->end, on_end, (uint64_t)d->config.drain_seconds * 1000, 0);
	server_drain(d->server, on_drained, d);
}

static void on_term(uv_signal_t *handle, int signum)
{
	struct daemon *d = handle->data;
	if (d->ending) {
		log_warning("signal %d again: the daemon exits at once", signum);
		finish(d);
		return;
	}
	log_info("signal %d: pending tasks may run for another %d s (drain_seconds)", signum,
		 d->config.drain_seconds);
	begin_end(d);
}

/* The daemon is no longer reachable, and another one may use the GPUs. */
static void on_path_lost(void *arg)
{
	struct daemon *d = arg;
	d->exit_code = EXIT_FAILURE;
	if (!d->ending)
		begin_end(d);
}

/* ---- Reload ---- */

static void on_hangup(uv_signal_t *handle, int signum)
{
	struct daemon *d = handle->data;
	struct config_changes changes;
	(void)signum;
	tell_systemd("RELOADING=1");
	if (config_reload(&d->config, d->argc, d->argv, d->envp, stderr, &changes)) {
		log_error("SIGHUP: the configuration has errors; nothing was changed");
	} else {
		log_set_level((enum log_level)d->config.log_level);
		start_keepalive(d);
		server_reload(d->server);
		if (d->cluster)
			cluster_reload(d->cluster, &d->config);
		log_info("SIGHUP: changed: %s", changes.applied[0] ? changes.applied : "nothing");
		if (changes.restart[0])
			log_warning("SIGHUP: these need a restart: %s", changes.restart);
	}
	tell_systemd("READY=1");
}

/* ---- The start ---- */

/* A socket must not get a standard stream's number, or messages would be written to it. */
static void fill_standard_fds(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Core files must not contain clients' registered memory, so they contain private memory and ELF
 * headers, but no shared mappings. Workers inherit this. */
static void keep_clients_out_of_core_files(void)
{
	static const char mask[] = "0x31"; /* core(5): private anonymous, ELF headers, huge */
	const int fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
	const ssize_t n = fd >= 0 ? write(fd, mask, sizeof(mask) - 1) : -1;
	if (n < 0)
		log_warning("core files of this daemon may hold clients' memory: "
			    "/proc/self/coredump_filter cannot be written: %s",
			    strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void raise_fd_limit(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

static int inherited(void)
{
#ifdef HAVE_SYSTEMD
	return sd_listen_fds(0); /* the variables are kept for reloads */
#else
	return 0;
#endif
}

/* Sets the path of a socket that systemd passes. */
static void name_inherited(struct daemon *d)
{
#ifdef HAVE_SYSTEMD
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t size = sizeof(address) - 1;
	if (inherited() > 0 &&
	    !getsockname(SD_LISTEN_FDS_START, (struct sockaddr *)&address, &size))
		snprintf(d->path, sizeof(d->path), "%s", address.sun_path);
#else
	(void)d;
#endif
}

/* Takes the sockets systemd passed. Returns 0 or -1. */
static int listen_inherited(struct daemon *d)
{
#ifdef HAVE_SYSTEMD
	const int n = inherited();
	for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++) {
		if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0) {
			log_error("the inherited fd %d is not a listening AF_UNIX SOCK_SEQPACKET "
				  "socket (ListenSequentialPacket= in the socket unit)",
				  fd);
			return -1;
		}
		if (server_listen(d->server, fd, false) < 0)
			return -1;
	}
	return n < 0 ? -1 : 0;
#else
	(void)d;
	return 0;
#endif
}

static mode_t socket_mode(const struct config *c)
{
	return c->access == CONFIG_ACCESS_ANY	  ? 0666
	       : c->access == CONFIG_ACCESS_GROUP ? 0660
						  : 0600;
}

/* A daemon of several nodes leaves a note for its successor: a successor that starts alone would be
 * a separate cluster, and ranks on the other nodes would wait for it in vain. The note is removed
 * when all nodes end together. */
static int compare_nodes(struct daemon *d)
{
	char note[64], was[64];
	socket_read_note(&d->socket.socket, was, sizeof(was));
	note[0] = '\0';
	if (cluster_is_together(d->cluster))
		snprintf(note, sizeof(note), "node %u of %u", d->cluster->me, d->cluster->n);
	else if (was[0] && !cluster_unwanted(&d->config, d->envp)) {
		log_error("the daemon on %s was %.40s, and did not exit with the other nodes; this "
			  "one would be alone. Stop the daemons of all nodes and start them "
			  "together; or, if this one should be alone, start it with "
			  "--cluster-bootstrap none",
			  d->path, was);
		return -1;
	}
	const int error = strcmp(note, was) ? socket_note(&d->socket.socket, note) : 0;
	if (error)
		log_warning("cannot write %s.lock: %s", d->path, strerror(-error));
	return 0;
}

/* Takes the path before workers start, since a second daemon on the same path must not start any.
 */
static int open_own(struct daemon *d)
{
	if (own_socket_open(&d->socket, d->path, socket_mode(&d->config), false))
		return -1;
	return compare_nodes(d);
}

static void on_admin_lost(void *arg)
{
	(void)arg;
	log_warning("without the socket for administration, users can only end their own sessions "
		    "and tasks");
}

/* Jobs are served even without it. */
static void listen_admin(struct daemon *d)
{
	if (!svc_admin_path(d->path, d->admin_path, sizeof(d->admin_path))) {
		log_warning("the path of the socket for administration is too long");
		on_admin_lost(d);
	} else if (own_socket_open(&d->admin, d->admin_path, 0600, true) ||
		   own_socket_serve(&d->admin, &d->loop, d->server, on_admin_lost, d)) {
		on_admin_lost(d);
	}
}

/* The socket's path may contain the node's number. */
static int fill_node_in(struct daemon *d)
{
	static const struct cluster alone;
	memcpy(d->path, d->config.socket, sizeof(d->path));
	if (!cluster_fill_path(d->cluster ? d->cluster : &alone, d->path, sizeof(d->path)))
		return 0;
	log_error("the path of the socket is too long");
	return -1;
}

/* Checked before any allocation, since running out of address space halfway may end the process
 * silently, for example in libuv. */
static bool has_memory(const struct daemon *d)
{
	const uint64_t more = server_bytes(&d->config) + NOFAIL_RESERVE_BYTES;
	if (memory_left(more))
		return true;
	log_error("cannot start: with this configuration the daemon needs %llu MiB of address "
		  "space. Raise RLIMIT_AS (LimitAS= of a systemd unit) or what the system may "
		  "commit, or lower tasks_max or host_threads",
		  (unsigned long long)((memory_held() + more) / MIB + 1));
	return false;
}

static int start(struct daemon *d)
{
	raise_fd_limit();
	keep_clients_out_of_core_files();
	if (!has_memory(d))
		return -1;
	if (!nofail_reserve_fill()) {
		log_error("cannot start: not enough memory for the reserve");
		return -1;
	}
	int several = cluster_wanted(&d->config, d->envp);
	if (several < 0 ||
	    (several && !(d->cluster = cluster_create(&d->loop, &d->config, d->envp))))
		return -1;
	if (!several && cluster_serves(&d->config) &&
	    !(d->cluster = cluster_open(&d->loop, &d->config)))
		return -1;
	if (fill_node_in(d))
		return -1;
	name_inherited(d);
	const bool own = inherited() == 0;
	if (own && open_own(d))
		return -1;
	d->server = server_create(&d->loop, &d->config, d->path, d->cluster, &daemon_callbacks);
	if (!d->server) {
		log_error("cannot start: %s", strerror(errno));
		return -1;
	}
	if (own ? own_socket_serve(&d->socket, &d->loop, d->server, on_path_lost, d)
		: listen_inherited(d))
		return -1;
	listen_admin(d);
	uv_signal_start(&d->term, on_term, SIGTERM);
	uv_signal_start(&d->interrupt, on_term, SIGINT);
	uv_signal_start(&d->hangup, on_hangup, SIGHUP);
	start_keepalive(d);
	tell_status(d, "READY=1\n");
	log_info("ready on %s: %d host ranks, %d host threads",
		 own ? d->path : "the inherited socket", d->config.ranks, d->config.host_threads);
	return 0;
}

static void on_close_deadline(uv_timer_t *timer)
{
	(void)timer;
	log_error("sessions did not end within %d ms: the daemon exits without them",
		  SESSIONS_END_MS);
	log_flush();
	_exit(EXIT_FAILURE);
}

static void stop(struct daemon *d)
{
	own_socket_stop(&d->socket);
	own_socket_stop(&d->admin);
	if (d->server) {
		server_close(d->server, NCCLSVC_DAEMON_LOST, "the daemon has shut down");
		uv_timer_start(&d->end, on_close_deadline, SESSIONS_END_MS, 0);
		while (!server_closed(d->server))
			uv_run(&d->loop, UV_RUN_ONCE);
	}
	close_own((uv_handle_t *)&d->term);
	close_own((uv_handle_t *)&d->interrupt);
	close_own((uv_handle_t *)&d->hangup);
	close_own((uv_handle_t *)&d->alive);
	close_own((uv_handle_t *)&d->end);
	if (d->cluster)
		cluster_close(d->cluster);
	uv_run(&d->loop, UV_RUN_DEFAULT);
	if (d->server)
		server_destroy(d->server);
	own_socket_close(&d->socket);
	own_socket_close(&d->admin);
	uv_loop_close(&d->loop);
	if (d->cluster) {
		cluster_destroy(d->cluster, d->exit_code);
		if (d->path[0])
			socket_forget_note(d->path);
	}
}

int main(int argc, char *argv[], char *envp[])
{
	static struct daemon d;
	/* The same program, started by the daemon itself. */
	if (!strncmp(argv[0], WORKER_PROBE, sizeof(WORKER_PROBE) - 1))
		return probe_main();
	if (!strncmp(argv[0], WORKER_NAME, sizeof(WORKER_NAME) - 1)) {
		const char *node = strstr(argv[0], WORKER_NODE);
		if (node)
			log_set_node((unsigned)atoi(node + sizeof(WORKER_NODE) - 1));
		const char *gpu = strstr(argv[0], WORKER_GPU);
		if (gpu)
			log_set_gpu((unsigned)atoi(gpu + sizeof(WORKER_GPU) - 1));
		return worker_main(argc, argv);
	}
	fill_standard_fds();
	d.argc = argc;
	d.argv = argv;
	d.envp = envp;
	int code = config_load(&d.config, argc, argv, envp, stdout, stderr);
	if (code >= 0)
		return code;
	if (log_init((enum log_target)d.config.log_target, (enum log_level)d.config.log_level))
		log_warning("this build has no journal support: logging to stderr");
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* then a memfd beyond RLIMIT_FSIZE fails only its request */
	loop_init_memory();
	if (uv_loop_init(&d.loop)) {
		log_error("cannot start: the event loop: %m");
		return EXIT_FAILURE;
	}
	uv_signal_init(&d.loop, &d.term);
	uv_signal_init(&d.loop, &d.interrupt);
	uv_signal_init(&d.loop, &d.hangup);
	uv_timer_init(&d.loop, &d.alive);
	uv_timer_init(&d.loop, &d.end);
	d.term.data = d.interrupt.data = d.hangup.data = d.alive.data = d.end.data = &d;
	if (start(&d))
		d.exit_code = EXIT_FAILURE;
	else
		uv_run(&d.loop, UV_RUN_DEFAULT);
	stop(&d);
	log_flush();
	return d.exit_code;
}
