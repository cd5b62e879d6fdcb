/* SPDX-License-Identifier: Apache-2.0
 *
 * The supervisor collects where the members' operations are: their recordings, whose rings a thread
 * then reads, and the operations on the direct transport. The thread waits for a moment, reads
 * pending tasks first and rings then, so that nothing that ends meanwhile is missing, and writes
 * the file.
 */
#include "dump_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account/task_table.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/timings.h"
#include "comm/comm.h"
#include "comm/comms.h"
#include "comm/peer/comm_peer.h"
#include "proto/json/operation_json.h"
#include "proto/names.h"
#include "recorded_operations.h"

#define DUMPS_MAX 16 /* at a time */
#define PREFIX	  "ncclsvc-"
#define SUFFIX	  ".json"

/* A member's recording. */
struct source {
	struct recording *rec; /* for recorder_read_end */
	struct recording copy; /* as it was */
	struct recorded_join join;
	uint32_t number; /* of that */
};

struct kernel {
	ncclsvc_operation_info info;
	struct kernel *next;
};

struct dump {
	struct loop_job job;
	struct comms *comms;
	uint64_t comm;
	uint32_t epoch, uid, nranks;
	char label[NCCLSVC_NAME_BYTES];
	ncclsvc_status why;
	char dir[sizeof(((struct config *)0)->dump_dir)];
	int max_files;
	struct kernel *kernels, **kernels_end;
	bool commas; /* a first operation was written */
	uint32_t nsources;
	struct source sources[];
};

/* ---- Is it a failure? ---- */

static uint64_t load(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static bool others_wait(const struct communicator *m, int32_t gone)
{
	for (uint32_t k = 0; m->progress && k < m->nranks; k++)
		if ((int32_t)k != gone && comm_alive(&m->members[k]) &&
		    load(&m->progress[k].submitted) != load(&m->progress[k].completed))
			return true;
	return m->peer && peer_pending(m);
}

bool recorder_dump_wanted(const struct communicator *m, const ncclsvc_status *why)
{
	if (!m->comms->config->dump_dir[0])
		return false;
	return why->result != NCCLSVC_PEER_GONE || why->field == NCCLSVC_FIELD_NODE ||
	       others_wait(m, why->rank_a);
}

/* ---- Collecting ---- */

static void add_source(struct dump *d, const struct communicator *m, uint32_t rank)
{
	struct source *s = &d->sources[d->nsources];
	struct recording *rec =
		m->begun->members[rank].node == m->comms->coord.me
			? recorder_find(m->comms->recorder, m->begun->members[rank].session)
			: NULL;
	if (!rec || !recording_find_join(rec, m->uid, m->epoch, (int32_t)rank, &s->number))
		return;
	s->rec = rec;
	s->copy = *rec;
	s->join = *recording_join(rec, s->number);
	recording_read_begin(rec);
	d->nsources++;
}

struct kernels {
	struct dump *d;
	const struct communicator *m;
	uint32_t rank;
};

static bool add_kernel(void *arg, const struct peer_operation *op)
{
	const struct kernels *k = arg;
	struct kernel *x = calloc(1, sizeof(*x));
	if (!x)
		return false;
	operation_of_kernel(k->m, k->rank, op, &x->info);
	*k->d->kernels_end = x;
	k->d->kernels_end = &x->next;
	return true;
}

/* ---- Writing ---- */

static void write_operation(struct dump *d, FILE *f, const ncclsvc_operation_info *i)
{
	char text[SVC_OPERATION_JSON];
	fprintf(f, "%s\n%s", d->commas ? "," : "", svc_operation_json(i, text));
	d->commas = true;
}

static void write_tasks(struct dump *d, FILE *f)
{
	const struct scheduler *x = d->comms->scheduler;
	const struct task_table *t = scheduler_table(x);
	const uint32_t high = atomic_load_explicit(&t->high, memory_order_acquire);
	struct table_entry e;
	ncclsvc_operation_info i;
	for (uint32_t slot = 0; slot < high; slot++) {
		if (!table_get(t, slot, &e) || e.comm_uid != d->comm || e.state == NCCLSVC_FAILED)
			continue;
		const struct recorded_join *j = NULL;
		for (uint32_t k = 0; k < d->nsources && !j; k++)
			if (d->sources[k].join.rank == e.rank && d->epoch == e.epoch)
				j = &d->sources[k].join;
		operation_of_task(&e, j, d->uid, &i);
		write_operation(d, f, &i);
	}
}

static void write_ring(struct dump *d, FILE *f, const struct source *s,
		       const struct recorder_ring *r)
{
	uint64_t first, end;
	struct recorded x;
	ncclsvc_operation_info i;
	char label[NCCLSVC_LABEL_BYTES];
	recorder_range(r, &first, &end);
	for (uint64_t n = first; n < end; n++) {
		if (!recorder_read(r, n, &x, label) || x.join != s->number)
			continue;
		operation_of_recorded(&s->copy, &s->join, &x, &i);
		memcpy(i.label, label, sizeof(i.label));
		write_operation(d, f, &i);
	}
}

static void write_failure(const struct dump *d, FILE *f, const struct timespec *at)
{
	char sentence[SVC_TEXT_BYTES + 128], text[6 * sizeof(sentence) + 3];
	svc_status_sentence(&d->why, sentence, sizeof(sentence));
	svc_json_string(text, sentence, sizeof(sentence));
	fprintf(f,
		"{\"schema\":1,\"realtime_ns\":%lld%09ld,\"monotonic_ns\":%" PRIu64
		",\"failure\":{\"comm\":%" PRIu64 ",\"epoch\":%u,\"nranks\":%u,\"uid\":%u,"
		"\"result\":\"%s\",\"text\":%s,\"rank\":%d,\"pid\":%d},",
		(long long)at->tv_sec, at->tv_nsec, clock_now(), d->comm, d->epoch, d->nranks,
		d->uid, svc_result_name(d->why.result), text, d->why.rank_a, d->why.pid_a);
	svc_json_string(text, d->label, sizeof(d->label));
	fprintf(f, "\"comm_label\":%s,\"operations\":[", text);
}

static void write_all(struct dump *d, FILE *f, const struct timespec *at)
{
	write_failure(d, f, at);
	write_tasks(d, f);
	for (uint32_t k = 0; k < d->nsources; k++) {
		write_ring(d, f, &d->sources[k], d->sources[k].copy.tasks);
		if (d->sources[k].copy.kernels)
			write_ring(d, f, &d->sources[k], d->sources[k].copy.kernels);
	}
	for (const struct kernel *k = d->kernels; k; k = k->next)
		write_operation(d, f, &k->info);
	fprintf(f, "\n]}\n");
}

/* ---- The directory ---- */

static bool is_dump(const char *name)
{
	const size_t n = strlen(name);
	return !strncmp(name, PREFIX, strlen(PREFIX)) && n > strlen(SUFFIX) &&
	       !strcmp(name + n - strlen(SUFFIX), SUFFIX);
}

/* Names are in the order of time. Returns how many there are. */
static int find_oldest(int dir, char oldest[NAME_MAX + 1])
{
	int n = 0;
	const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
	if (!entries) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	for (const struct dirent *e; (e = readdir(entries));) {
		if (!is_dump(e->d_name))
			continue;
		if (!n++ || strcmp(e->d_name, oldest) < 0)
			snprintf(oldest, NAME_MAX + 1, "%s", e->d_name);
	}
	closedir(entries);
	return n;
}

static void make_room(int dir, int max_files)
{
	char oldest[NAME_MAX + 1];
	while (find_oldest(dir, oldest) >= max_files)
		if (unlinkat(dir, oldest, 0))
			return;
}

/* "ncclsvc-20261127T221855.123456789Z-comm5.json" */
static void name_file(const struct dump *d, const struct timespec *at, char *name, size_t size)
{
	struct tm tm;
	char time[32];
	gmtime_r(&at->tv_sec, &tm);
	strftime(time, sizeof(time), "%Y%m%dT%H%M%S", &tm);
	snprintf(name, size, PREFIX "%s.%09ldZ-comm%" PRIu64 SUFFIX, time, at->tv_nsec, d->comm);
}

/* Returns 0 or -errno. */
static int write_file(struct dump *d, int dir, const struct timespec *at)
{
	char name[NAME_MAX - 8], temporary[NAME_MAX];
	name_file(d, at, name, sizeof(name));
	snprintf(temporary, sizeof(temporary), ".%s.tmp", name);
	const int fd =
		openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!f) {
		const int error = errno;
		if (fd >= 0)
			close(fd);
		return -error;
	}
	write_all(d, f, at);
	errno = 0;
	const bool failed = ferror(f);
	if (fclose(f) || failed || renameat(dir, temporary, dir, name)) {
		const int error = errno ? errno : EIO;
		unlinkat(dir, temporary, 0);
		return -error;
	}
	return 0;
}

static void tell_error(const struct dump *d, int error)
{
	log_warning("the operations of communicator %s (id %" PRIu64 ") cannot be written to %s "
		    "(dump_dir): %s",
		    d->label, d->comm, d->dir, strerror(error));
}

static void run(struct loop_job *job)
{
	struct dump *d = (struct dump *)job;
	const struct timespec wait = {.tv_nsec = DUMP_AFTER_NS};
	struct timespec at;
	/* Without a thread, the loop's own runs this: it must not wait for a disk. */
	if (syscall(SYS_gettid) == getpid())
		return;
	nanosleep(&wait, NULL);
	clock_gettime(CLOCK_REALTIME, &at);
	const int dir = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) {
		tell_error(d, errno);
		return;
	}
	make_room(dir, d->max_files);
	const int error = write_file(d, dir, &at);
	if (error)
		tell_error(d, -error);
	close(dir);
}

static void done(struct loop_job *job)
{
	struct dump *d = (struct dump *)job;
	struct kernel *next;
	for (uint32_t k = 0; k < d->nsources; k++)
		recorder_read_end(d->comms->recorder, d->sources[k].rec);
	for (struct kernel *k = d->kernels; k; k = next) {
		next = k->next;
		free(k);
	}
	d->comms->dumps--;
	free(d);
}

void recorder_dump_for(struct communicator *m, const ncclsvc_status *why)
{
	struct comms *s = m->comms;
	const uint64_t now = clock_now();
	if (!s->config->dump_dir[0] || why->result == NCCLSVC_CANCELLED || !m->begun ||
	    s->dumps == DUMPS_MAX || s->loop->closing ||
	    (m->dumped_ns && now - m->dumped_ns < DUMP_AGAIN_NS))
		return;
	struct dump *d = calloc(1, sizeof(*d) + m->nranks * sizeof(d->sources[0]));
	if (!d)
		return;
	m->dumped_ns = now;
	s->dumps++;
	d->job.run = run;
	d->job.done = done;
	d->comms = s;
	d->comm = m->uid;
	d->epoch = m->epoch;
	d->nranks = m->nranks;
	d->uid = m->account->tenant.uid;
	d->why = *why;
	d->max_files = s->config->dump_max_files;
	d->kernels_end = &d->kernels;
	memcpy(d->label, m->label, sizeof(d->label));
	memcpy(d->dir, s->config->dump_dir, sizeof(d->dir));
	for (uint32_t k = 0; k < m->nranks; k++) {
		add_source(d, m, k);
		struct kernels kernels = {d, m, k};
		if (m->peer)
			peer_each_launched(m, k, 0, add_kernel, &kernels);
	}
	loop_run_job(s->loop, &d->job, UINT64_MAX);
}
