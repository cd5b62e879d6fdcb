/* SPDX-License-Identifier: Apache-2.0 */
#include "node_daemons.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness_parts.h"
#include "proto/wire_comm.h"

#define ARGS_MAX 160

static void exec_logged(char *const argv[], int log)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
	setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
	signal(SIGALRM, SIG_DFL);
	alarm(0);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	execvp(argv[0], argv);
	dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static ncclsvc_session *open_without_ring(const struct daemon *d)
{
	ncclsvc_options options = {.size = sizeof(options),
				   .socket = d->socket,
				   .no_ring = true,
				   .timeout_ms = WAIT_MS};
	ncclsvc_session *session;
	return ncclsvc_open(&options, &session) ? NULL : session;
}

/* Waits until the daemon serves, and asks it for its pid. starter: it, or mpirun. */
static pid_t pid_of(pid_t starter, const struct daemon *d)
{
	ncclsvc_session *session;
	ncclsvc_daemon_info info;
	int status;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !(session = open_without_ring(d));
	     sleep_ms(5))
		if (now_ns() > end || waitpid(starter, &status, WNOHANG))
			check_failed(__FILE__, __LINE__, "the daemon does not serve %s", d->socket);
	CHECK_OK(ncclsvc_daemon(session, &info));
	ncclsvc_close(session);
	return info.pid;
}

/* Notes the daemon's usage after its first session with a ring, which may still be ending when the
 * daemon no longer counts it. The observer is a session without a ring, which takes only one
 * socket. */
static void note_usage(struct daemon *d)
{
	ncclsvc_session *session = open_without_ring(d);
	ncclsvc_daemon_info info;
	struct usage before = daemon_usage(d), u;
	CHECK(session);
	ncclsvc_close(session_open(d));
	uint64_t end = now_ns() + WAIT_MS * 1000000ull;
	for (int still = 0; still < 10; sleep_ms(2)) {
		CHECK_OK(ncclsvc_daemon(session, &info));
		u = daemon_usage(d);
		bool gone = u.memfds == before.memfds && u.fds <= before.fds;
		still = gone && info.sessions == 1 && u.fds == d->base.fds ? still + 1 : 0;
		d->base = u;
		CHECK(now_ns() < end);
	}
	ncclsvc_close(session);
	d->base.fds--;
	daemon_finishes(d);
}

struct arguments {
	char *at[ARGS_MAX];
	int n;
};

static void add(struct arguments *a, const char *one)
{
	CHECK(a->n < ARGS_MAX - 1);
	a->at[a->n++] = (char *)one;
}

static void add_all(struct arguments *a, const char *const *list)
{
	while (*list)
		add(a, *list++);
}

/* How to start the daemons. gpus: each one's CUDA_VISIBLE_DEVICES (an entry of NULL: not set), or
 * NULL to run without GPUs. transports: each one's --transport, or NULL. */
struct daemon_options {
	const char *const *gpus, *const *transports;
	const char *more[ARGS_MAX];
};

/* The i-th daemon's command. */
static void add_daemon(struct arguments *a, int i, const char *socket,
		       const struct daemon_options *o)
{
	static char visible[CLUSTER_NODES][600];
	if (o->gpus && o->gpus[i]) {
		snprintf(visible[i], sizeof(visible[i]), "CUDA_VISIBLE_DEVICES=%s", o->gpus[i]);
		add_all(a, (const char *const[]){"env", visible[i], NULL});
	}
	add_all(a, (const char *const[]){program("NCCLSVCD"), "--config", "/dev/null", "--device",
					 o->gpus ? "cuda" : "host", "--log-target", "stderr",
					 "--socket", socket, NULL});
	if (o->transports)
		add_all(a, (const char *const[]){"--transport", o->transports[i], NULL});
	add_all(a, o->more);
}

static void arrange(struct cluster *c, struct arguments *a, const struct daemon_options *o)
{
	static char count[8], sockets[128];
	static const char *const mpirun[] = {"mpirun",
					     "--enable-recovery",
					     "--oversubscribe",
					     "--bind-to",
					     "none",
					     "--mca",
					     "orte_abort_print_stack",
					     "0",
					     NULL};
	snprintf(sockets, sizeof(sockets), "%s/s%%r", c->dir);
	snprintf(count, sizeof(count), "%d", o->gpus ? 1 : c->n);
	add_all(a, mpirun);
	for (int i = 0; i < (o->gpus ? c->n : 1); i++) {
		if (i)
			add(a, ":");
		add_all(a, (const char *const[]){"-n", count, NULL});
		add_daemon(a, i, sockets, o);
	}
}

static pid_t launch(struct arguments *a, int log)
{
	a->at[a->n] = NULL;
	fflush(NULL);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		exec_logged(a->at, log);
	return pid;
}

static void write_key(const char *path)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQ(dprintf(fd, "the key of this test's nodes, with 32 bytes or more\n") > 0, 1);
	close(fd);
}

/* Starts each daemon by itself; they connect when they have something to say. */
static void launch_each(struct cluster *c, int log, const struct daemon_options *o)
{
	char key[128];
	snprintf(key, sizeof(key), "%s/key", c->dir);
	write_key(key);
	const char *const linked[] = {"--cluster-interface",
				      "127.0.0.1",
				      "--cluster-port",
				      "0",
				      "--cluster-key-file",
				      key,
				      NULL};
	for (int i = 0; i < c->n; i++) {
		struct arguments a = {.n = 0};
		add_daemon(&a, i, c->nodes[i].socket, o);
		add_all(&a, linked);
		c->nodes[i].pid = launch(&a, log);
	}
}

bool cluster_is_linked(void)
{
	return getenv("NCCLSVC_TEST_LINKS");
}

static void begin(struct cluster *c, int n, const char *const *gpus, const char *const *transports,
		  va_list options)
{
	struct arguments args = {.n = 0};
	struct daemon_options o = {.gpus = gpus, .transports = transports};
	for (int i = 0; i < ARGS_MAX - 1 && (o.more[i] = va_arg(options, char *)); i++)
		;
	memset(c, 0, sizeof(*c));
	c->n = n;
	snprintf(c->dir, sizeof(c->dir), "/tmp/ncclsvc-test-XXXXXX");
	CHECK(mkdtemp(c->dir));
	snprintf(c->log, sizeof(c->log), "%s/log", c->dir);
	int log = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	CHECK(log >= 0);
	for (int i = 0; i < c->n; i++) {
		struct daemon *d = &c->nodes[i];
		snprintf(d->dir, sizeof(d->dir), "%s", c->dir);
		snprintf(d->log, sizeof(d->log), "%s", c->log);
		snprintf(d->socket, sizeof(d->socket), "%s/s%d", c->dir, i);
	}
	if (cluster_is_linked()) {
		c->mpirun = -1;
		launch_each(c, log, &o);
	} else {
		arrange(c, &args, &o);
		c->mpirun = launch(&args, log);
	}
	close(log);
	for (int i = 0; i < c->n; i++) {
		struct daemon *d = &c->nodes[i];
		d->pid = pid_of(d->pid ? d->pid : c->mpirun, d);
		daemon_watch(d);
	}
	for (int i = 0; i < c->n && !cluster_is_linked(); i++)
		note_usage(&c->nodes[i]);
}

void cluster_start(struct cluster *c, int n, ...)
{
	va_list options;
	va_start(options, n);
	begin(c, n, NULL, NULL, options);
	va_end(options);
}

void cluster_start_with(struct cluster *c, int n, va_list options)
{
	begin(c, n, NULL, NULL, options);
}

void cluster_start_gpus(struct cluster *c, int n, const char *const gpus[], ...)
{
	va_list options;
	va_start(options, gpus);
	begin(c, n, gpus, NULL, options);
	va_end(options);
}

/* The i-th GPU that this process may use. */
static void name_gpu(int i, char *text, size_t size)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	snprintf(text, size, "%d", i);
	if (!visible || !*visible)
		return;
	while (i-- > 0 && strchr(visible, ','))
		visible = strchr(visible, ',') + 1;
	snprintf(text, size, "%.*s", (int)strcspn(visible, ","), visible);
}

void cluster_start_staged(struct cluster *c, int n, int gpus, const char *const *transports, ...)
{
	char names[CLUSTER_NODES][512], name[64];
	const char *visible[CLUSTER_NODES] = {NULL};
	va_list options;
	for (int i = 0; i < n && gpus; i++) {
		size_t at = 0;
		for (int k = 0; k < gpus; k++) {
			name_gpu(i * gpus + k, name, sizeof(name));
			at += (size_t)snprintf(names[i] + at, sizeof(names[i]) - at, "%s%s",
					       k ? "," : "", name);
		}
		visible[i] = names[i];
	}
	va_start(options, transports);
	begin(c, n, visible, transports, options);
	va_end(options);
}

static size_t read_log(const struct cluster *c, char *text, size_t size)
{
	size_t n = 0;
	int fd = open(c->log, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (ssize_t k; n < size - 1 && (k = read(fd, text + n, size - 1 - n)) > 0;)
		n += (size_t)k;
	close(fd);
	text[n] = '\0';
	return n;
}

bool cluster_logged(const struct cluster *c, const char *text)
{
	static char log[1 << 20];
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; now_ns() < end; sleep_ms(5)) {
		read_log(c, log, sizeof(log));
		if (strstr(log, text))
			return true;
	}
	return false;
}

static void check_log(const struct cluster *c)
{
	static const char *const complaints[] = {"Sanitizer", "runtime error:", "ssertion",
						 "a defect of the daemon"};
	static char text[1 << 20];
	read_log(c, text, sizeof(text));
	for (size_t i = 0; i < sizeof(complaints) / sizeof(complaints[0]); i++)
		if (strstr(text, complaints[i]))
			check_failed(__FILE__, __LINE__, "the daemons' log says \"%s\": %s",
				     complaints[i], strstr(text, complaints[i]));
}

static void reap_daemon(struct cluster *c, int node, int signum)
{
	struct daemon *d = &c->nodes[node];
	int status = 0;
	if (cluster_is_linked())
		CHECK(reap(d->pid, &status, WAIT_MS));
	if (signum == SIGTERM)
		CHECK_EQ(status, 0);
	daemon_unwatch(d);
}

void cluster_kill(struct cluster *c, int node)
{
	CHECK(c->nodes[node].pid > 0);
	CHECK_EQ(kill(c->nodes[node].pid, SIGKILL), 0);
	reap_daemon(c, node, SIGKILL);
}

/* The port on which other nodes reach it, from an id that it creates. */
static unsigned port_of(const struct daemon *d)
{
	ncclsvc_unique_id id;
	struct svc_rendezvous at;
	ncclsvc_session *s = open_without_ring(d);
	CHECK(s);
	CHECK_OK(ncclsvc_unique_id_request(s, &id));
	ncclsvc_close(s);
	memcpy(&at, id.bytes + SVC_RENDEZVOUS_AT, sizeof(at));
	return at.port;
}

/* Reads NUL-terminated strings from /proc. Returns the number of bytes. */
static size_t read_strings(pid_t pid, const char *name, char *text, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	const ssize_t n = read(fd, text, size - 1);
	close(fd);
	CHECK(n > 0);
	text[n] = '\0';
	return (size_t)n;
}

/* How to start a daemon once more. */
struct again {
	struct arguments arguments;
	char command[1 << 13], environment[1 << 16], port[8];
};

static void note_command(const struct daemon *d, struct again *r)
{
	struct arguments *a = &r->arguments;
	const size_t n = read_strings(d->pid, "cmdline", r->command, sizeof(r->command)),
		     m = read_strings(d->pid, "environ", r->environment, sizeof(r->environment));
	*a = (struct arguments){.n = 0};
	snprintf(r->port, sizeof(r->port), "%u", port_of(d));
	add(a, "env");
	for (char *at = r->environment; at < r->environment + m; at += strlen(at) + 1)
		if (!strncmp(at, "CUDA_VISIBLE_DEVICES=", 21))
			add(a, at);
	for (char *at = r->command; at < r->command + n; at += strlen(at) + 1)
		add(a, a->n && !strcmp(a->at[a->n - 1], "--cluster-port") ? r->port : at);
}

/* more: arguments to append, then NULL. */
static void restart_some(struct cluster *c, int first, int end, int signum, const char *const *more)
{
	static struct again all[CLUSTER_NODES];
	for (int i = first; i < end; i++) {
		note_command(&c->nodes[i], &all[i]);
		add_all(&all[i].arguments, more);
	}
	for (int i = first; i < end; i++)
		CHECK_EQ(kill(c->nodes[i].pid, signum), 0);
	for (int i = first; i < end; i++)
		reap_daemon(c, i, signum);
	const int log = open(c->log, O_WRONLY | O_APPEND | O_CLOEXEC);
	CHECK(log >= 0);
	for (int i = first; i < end; i++)
		c->nodes[i].pid = launch(&all[i].arguments, log);
	close(log);
	for (int i = first; i < end; i++) {
		c->nodes[i].pid = pid_of(c->nodes[i].pid, &c->nodes[i]);
		daemon_watch(&c->nodes[i]);
	}
}

void cluster_restart(struct cluster *c, int node, int signum)
{
	restart_some(c, node, node + 1, signum, (const char *const[]){NULL});
}

void cluster_restart_with(struct cluster *c, int node, const char *option, const char *value)
{
	restart_some(c, node, node + 1, SIGTERM, (const char *const[]){option, value, NULL});
}

void cluster_restart_all(struct cluster *c, int signum)
{
	restart_some(c, 0, c->n, signum, (const char *const[]){NULL});
}

static void reap_each(const struct cluster *c)
{
	char key[128];
	int status;
	for (int i = 0; i < c->n; i++) {
		const pid_t pid = c->nodes[i].pid;
		if (pid && (!reap(pid, &status, WAIT_MS) || status))
			check_failed(__FILE__, __LINE__, "daemon %d (pid %d) does not end well", i,
				     pid);
	}
	snprintf(key, sizeof(key), "%s/key", c->dir);
	unlink(key);
}

void cluster_stop(struct cluster *c)
{
	int status;
	char path[160];
	bool all = true;
	for (int i = 0; i < c->n; i++)
		all &= c->nodes[i].pid != 0;
	/* Check for leaks, unless a node was killed: its connections are closed on the other nodes,
	 * too. */
	for (int i = 0; all && i < c->n && !cluster_is_linked(); i++)
		daemon_finishes(&c->nodes[i]);
	for (int i = 0; i < c->n; i++)
		if (c->nodes[i].pid)
			CHECK_EQ(kill(c->nodes[i].pid, SIGTERM), 0);
	if (cluster_is_linked())
		reap_each(c);
	else if (!reap(c->mpirun, &status, WAIT_MS))
		check_failed(__FILE__, __LINE__, "mpirun (pid %d) does not end", c->mpirun);
	check_log(c);
	for (int i = 0; i < c->n; i++) {
		struct daemon *d = &c->nodes[i];
		/* A killed daemon leaves its socket behind, others do not. */
		if (d->pid)
			CHECK(access(d->socket, F_OK) < 0);
		unlink(d->socket);
		static const char *const besides[] = {".lock", ".admin", ".admin.lock"};
		for (unsigned k = 0; k < sizeof(besides) / sizeof(besides[0]); k++) {
			snprintf(path, sizeof(path), "%s%s", d->socket, besides[k]);
			unlink(path);
		}
		if (d->pid)
			daemon_unwatch(d);
	}
	unlink(c->log);
	rmdir(c->dir);
	c->mpirun = 0;
}

ncclsvc_unique_id cluster_new_id(const struct cluster *c)
{
	ncclsvc_unique_id id;
	int node = 0;
	if (!cluster_is_linked()) {
		CHECK_OK(ncclsvc_unique_id_create(&id));
		return id;
	}
	while (!c->nodes[node].pid)
		node++;
	ncclsvc_session *s = open_without_ring(&c->nodes[node]);
	CHECK(s);
	CHECK_OK(ncclsvc_unique_id_request(s, &id));
	ncclsvc_close(s);
	return id;
}

void cluster_clients(struct client *clients, int nranks, const struct cluster *c,
		     enum layout layout, client_main *main, void *arg)
{
	ncclsvc_unique_id id = cluster_new_id(c);
	for (int i = 0; i < nranks; i++) {
		int node = layout == IN_TURN ? i % c->n : i * c->n / nranks;
		clients[i] = (struct client){.rank = i,
					     .nranks = nranks,
					     .daemon = &c->nodes[node],
					     .id = id,
					     .arg = arg,
					     .link = -1};
		client_start(&clients[i], main);
	}
}

/* ---- Single-node tests on several nodes ---- */

static struct cluster shared_clusters[4];

int cluster_nodes(void)
{
	const char *value = getenv("NCCLSVC_TEST_NODES");
	int n = value ? atoi(value) : 0;
	return n > CLUSTER_NODES ? CLUSTER_NODES : n;
}

struct cluster *cluster_of(const struct daemon *d)
{
	for (int i = 0; i < 4; i++)
		if (shared_clusters[i].mpirun && !strcmp(shared_clusters[i].dir, d->dir))
			return &shared_clusters[i];
	return NULL;
}

struct cluster *cluster_start_for(struct daemon *d, va_list options)
{
	int i = 0;
	while (i < 4 && shared_clusters[i].mpirun)
		i++;
	CHECK(i < 4);
	cluster_start_with(&shared_clusters[i], cluster_nodes(), options);
	*d = shared_clusters[i].nodes[0];
	return &shared_clusters[i];
}
