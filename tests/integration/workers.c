/* SPDX-License-Identifier: Apache-2.0 */
#include "workers_rank.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tasks must end within this time; no deadline ends them sooner. Benchmarks measure the actual
 * time. */
#define OPTIONS_MAX 8

/* ---- The stand-ins' directory ---- */

static char fake_dir[64]; /* for ranks_teardown, when a test has failed */

static int files_in(const char *path, const char *start, bool remove)
{
	int n = 0;
	DIR *dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (e->d_name[0] == '.' || strncmp(e->d_name, start, strlen(start)) != 0)
			continue;
		n++;
		if (remove)
			unlinkat(dirfd(dir), e->d_name, 0);
	}
	if (dir)
		closedir(dir);
	return n;
}

static void fake_remove(void)
{
	if (!fake_dir[0])
		return;
	files_in(fake_dir, "", true);
	rmdir(fake_dir);
	fake_dir[0] = '\0';
}

int ranks_teardown(void **state)
{
	int error = harness_teardown(state);
	fake_remove();
	return error;
}

static void fault_path(const struct rank_group *c, const char *name, char path[128])
{
	snprintf(path, 128, "%s/fault.%s", c->fake, name);
}

void fault_on(const struct rank_group *c, const char *name, int pid)
{
	char path[128];
	fault_path(c, name, path);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && dprintf(fd, "%d", pid) > 0);
	close(fd);
}

void fault_off(const struct rank_group *c, const char *name)
{
	char path[128];
	fault_path(c, name, path);
	CHECK_EQ(unlink(path), 0);
}

void kernels_hang(const struct rank_group *c, int n)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; files_in(c->fake, "hangs-", false) < n;
	     sleep_ms(2))
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "fewer than %d kernels hang", n);
}

/* ---- GPUs ---- */

ncclsvc_device_info device_of(const struct rank_group *c, int device)
{
	ncclsvc_device_info *list, info;
	size_t n;
	ncclsvc_session *s = session_open(&c->d);
	CHECK_OK(ncclsvc_list_devices(s, &list, &n));
	CHECK(device >= 0 && (size_t)device < n);
	info = list[device];
	CHECK_EQ(info.device, device);
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return info;
}

void only_comm_stays(const struct rank_group *c, int device)
{
	const uint64_t end = now_ns() + WAIT_MS * UINT64_C(1000000);
	for (; device_of(c, device).nccl_comms != 1; sleep_ms(1))
		CHECK(now_ns() < end);
}

ncclsvc_device_info device_reaches(const struct rank_group *c, int device,
				   ncclsvc_device_state state)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(2)) {
		ncclsvc_device_info info = device_of(c, device);
		if (info.state == state)
			return info;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "gpu%d is in state %u, not %d: %s", device,
				     info.state, state, info.text);
	}
}

uint64_t worker_kill(const struct rank_group *c, int device)
{
	int pid = device_of(c, device).pid;
	CHECK(pid > 0);
	CHECK_EQ(kill(pid, SIGKILL), 0);
	return process_gone(pid);
}

void worker_pause(int pid)
{
	process_stop(pid);
}

void worker_continue(int pid)
{
	CHECK_EQ(kill(pid, SIGCONT), 0);
}

ncclsvc_device_info worker_replaced(const struct rank_group *c, int device, int pid)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(2)) {
		ncclsvc_device_info info = device_of(c, device);
		if (info.state == NCCLSVC_DEVICE_READY && info.pid != pid)
			return info;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "gpu%d has no new worker: state %u, %s",
				     device, info.state, info.text);
	}
}

bool daemon_says(const struct daemon *d, const char *text)
{
	static char log[1 << 20];
	int fd = open(d->log, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	ssize_t n = pread(fd, log, sizeof(log) - 1, 0);
	close(fd);
	log[n > 0 ? n : 0] = '\0';
	return strstr(log, text);
}

/* A launched task whose input has not arrived is shown as waiting for it. */
static bool in_state(const ncclsvc_task_info *t, ncclsvc_state state)
{
	return t->state == state ||
	       (state == NCCLSVC_LAUNCHED && t->state == NCCLSVC_WAITING_INPUT);
}

void tasks_come(const struct rank_group *c, ncclsvc_state state, size_t n)
{
	ncclsvc_session *s = session_open(&c->d);
	size_t found = 0;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; found != n; sleep_ms(2)) {
		ncclsvc_task_info *list;
		size_t tasks;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "%zu tasks are %s, not %zu", found,
				     ncclsvc_state_name(state), n);
		CHECK_OK(ncclsvc_list_tasks(s, &list, &tasks));
		found = 0;
		for (size_t i = 0; i < tasks; i++)
			found += in_state(&list[i], state);
		ncclsvc_list_free(list);
	}
	ncclsvc_close(s);
}

void sessions_reach(const struct rank_group *c, size_t n)
{
	ncclsvc_session *s = session_open(&c->d);
	ncclsvc_daemon_info info;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull;; sleep_ms(2)) {
		CHECK_OK(ncclsvc_daemon(s, &info));
		if (info.sessions == n + 1) /* n and this one */
			break;
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "the daemon has %u sessions, not %zu",
				     info.sessions - 1, n);
	}
	ncclsvc_close(s);
}

void tasks_reach_some(const struct rank_group *c, int rank, ncclsvc_state state)
{
	ncclsvc_session *s = session_open(&c->d);
	bool there = false;
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; !there; sleep_ms(2)) {
		ncclsvc_task_info *list;
		size_t n;
		CHECK_OK(ncclsvc_list_tasks(s, &list, &n));
		for (size_t i = 0; i < n; i++)
			there |= list[i].pid == c->ranks[rank].pid && in_state(&list[i], state);
		ncclsvc_list_free(list);
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "no task of rank %d is %s", rank,
				     ncclsvc_state_name(state));
	}
	ncclsvc_close(s);
}

/* ---- Resources ---- */

static size_t devices_count(const struct rank_group *c)
{
	ncclsvc_device_info *list;
	size_t n;
	ncclsvc_session *s = session_open(&c->d);
	CHECK_OK(ncclsvc_list_devices(s, &list, &n));
	ncclsvc_list_free(list);
	ncclsvc_close(s);
	return n;
}

static unsigned long long unused_memory(const struct rank_group *c, int gpu)
{
	struct client one;
	ncclsvc_unique_id id;
	memset(&id, 0, sizeof(id));
	one = (struct client){.rank = gpu, .nranks = 1, .daemon = &c->d, .id = id, .link = -1};
	client_start(&one, unused_main);
	unsigned long long bytes = hear(&one);
	clients_end(&one, 1);
	return bytes;
}

static int fds_of(int pid)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	return files_in(path, "", false);
}

static void note_base(struct rank_group *c)
{
	int n = (int)devices_count(c);
	c->base.files = files_in(c->fake, "memory-", false);
	for (int i = 0; i < n && i < RANK_GROUP_GPUS; i++) {
		c->base.worker_fds[i] = fds_of(device_of(c, i).pid);
		c->base.unused[i] = unused_memory(c, i);
	}
}

/* Whether all resources are back to their initial values. If not, the text names one that is not.
 */
static bool clean(const struct rank_group *c, char *text, size_t size)
{
	int n = (int)devices_count(c);
	for (int i = 0; i < n && i < RANK_GROUP_GPUS; i++) {
		ncclsvc_device_info d = device_of(c, i);
		snprintf(text, size, "gpu%d has %u imports, %d fds for %d", i, d.imports,
			 fds_of(d.pid), c->base.worker_fds[i]);
		if (d.imports || d.import_bytes || fds_of(d.pid) > c->base.worker_fds[i])
			return false;
		unsigned long long unused = unused_memory(c, i);
		snprintf(text, size, "gpu%d has %llu bytes unused, but had %llu", i, unused,
			 c->base.unused[i]);
		if (unused != c->base.unused[i])
			return false;
	}
	int files = files_in(c->fake, "memory-", false);
	snprintf(text, size, "%d files of GPU memory, were %d", files, c->base.files);
	return files == c->base.files;
}

static void check_clean(const struct rank_group *c)
{
	char text[256];
	uint64_t end = now_ns() + (sanitized() ? 5 : 1) * FINISH_MS * 1000000ull;
	for (; !clean(c, text, sizeof(text)); sleep_ms(10))
		if (now_ns() > end)
			check_failed(__FILE__, __LINE__, "%s", text);
}

/* ---- Beginning and end ---- */

void ranks_prepare(struct rank_group *c, int gpus)
{
	char number[16];
	memset(c, 0, sizeof(*c));
	c->gpus = gpus;
	snprintf(c->fake, sizeof(c->fake), "%s/ncclsvc-fake-XXXXXX",
		 access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	CHECK(mkdtemp(c->fake));
	memcpy(fake_dir, c->fake, sizeof(fake_dir));
	snprintf(number, sizeof(number), "%d", gpus);
	setenv("NCCLSVC_FAKE_DIR", c->fake, 1);
	setenv("NCCLSVC_FAKE_GPUS", number, 1);
	setenv("NCCLSVC_FAKE_MEMORY", "134217728", 1);
	c->pages = mmap(NULL, RANK_GROUP_MAX * sizeof(*c->pages), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(c->pages != MAP_FAILED);
}

static void start_daemon(struct rank_group *c, va_list options)
{
	char *o[OPTIONS_MAX + 1] = {0};
	for (int n = 0; (o[n] = va_arg(options, char *)); n++)
		CHECK(n < OPTIONS_MAX);
	daemon_start(&c->d, "--device", "cuda", "--log-level", "debug", o[0] ? o[0] : NULL, o[1],
		     o[2], o[3], o[4], o[5], o[6], o[7], NULL);
	note_base(c);
}

void ranks_start_daemon(struct rank_group *c, ...)
{
	va_list options;
	va_start(options, c);
	start_daemon(c, options);
	va_end(options);
}

void ranks_create(struct rank_group *c, int n)
{
	CHECK(n <= RANK_GROUP_MAX);
	c->n = n;
	for (int i = 0; i < n; i++)
		c->pages[i].gpu = i % c->gpus;
	clients_start(c->ranks, n, &c->d, rank_main, c->pages);
	hear_all(c->ranks, n, NCCLSVC_OK);
}

void ranks_start(struct rank_group *c, int n, ...)
{
	va_list options;
	ranks_prepare(c, n);
	va_start(options, n);
	start_daemon(c, options);
	va_end(options);
	ranks_create(c, n);
	ranks_join(c, 1, (1u << n) - 1, 0);
	ranks_try(c, (1u << n) - 1, 0);
}

void ranks_replace(struct rank_group *c, int rank)
{
	CHECK_EQ(c->ranks[rank].pid, 0);
	client_start(&c->ranks[rank], rank_main);
	CHECK_EQ(hear(&c->ranks[rank]), NCCLSVC_OK);
}

void ranks_stop(struct rank_group *c)
{
	for (int i = 0; i < c->n; i++)
		if (c->ranks[i].pid)
			ranks_must(c, i, ORDER_CLOSE, NCCLSVC_OK, 0);
	clients_end(c->ranks, c->n);
	if (c->d.pid) {
		check_clean(c);
		daemon_stop(&c->d);
	}
	fake_remove();
	munmap(c->pages, RANK_GROUP_MAX * sizeof(*c->pages));
}

/* ---- Commands ---- */

void ranks_tell(struct rank_group *c, int i, enum order order, const int64_t args[6])
{
	memcpy(c->pages[i].args, args, sizeof(c->pages[i].args));
	say(&c->ranks[i], order);
}

uint64_t ranks_reply(struct rank_group *c, int i)
{
	return hear_within(&c->ranks[i], 2 * WAIT_MS);
}

void ranks_expect(const struct rank_group *c, int i, ncclsvc_result is, ncclsvc_result due,
		  const char *file, int line)
{
	if (is != due)
		check_failed(file, line, "rank %d has %s, not %s: %s", i, ncclsvc_result_name(is),
			     ncclsvc_result_name(due), c->pages[i].text);
}

void ranks_join(struct rank_group *c, int id, unsigned mask, int place)
{
	int nranks = __builtin_popcount(mask), rank = 0;
	for (int i = 0; i < c->n; i++)
		if (mask & 1u << i)
			ranks_begin(c, i, ORDER_JOIN, id, nranks, rank++, c->pages[i].gpu, WAIT_MS,
				    place);
	for (int i = 0; i < c->n; i++)
		if (mask & 1u << i)
			ranks_ended(c, i, NCCLSVC_OK);
}

void ranks_rejoin(struct rank_group *c, unsigned mask, int place)
{
	for (int i = 0; i < c->n; i++)
		if (mask & 1u << i)
			ranks_begin(c, i, ORDER_REJOIN, place, WAIT_MS);
	for (int i = 0; i < c->n; i++)
		if (mask & 1u << i)
			ranks_ended(c, i, NCCLSVC_OK);
}

void ranks_try(struct rank_group *c, unsigned mask, int place)
{
	static int64_t value;
	uint32_t sum = 0;
	value += 10;
	for (int i = 0; i < c->n; i++) {
		if (!(mask & 1u << i))
			continue;
		sum += (uint32_t)(value + i);
		ranks_must(c, i, ORDER_SUM, NCCLSVC_OK, place, 1000, value + i);
	}
	for (int i = 0; i < c->n; i++) {
		if (!(mask & 1u << i))
			continue;
		ranks_must(c, i, ORDER_SYNC, NCCLSVC_OK, 0);
		ranks_must(c, i, ORDER_WAIT, NCCLSVC_OK, WAIT_MS);
		ranks_begin(c, i, ORDER_VALUE, 0);
		CHECK_EQ(ranks_reply(c, i), sum);
	}
}

uint64_t ranks_kill(struct rank_group *c, int rank)
{
	client_kill(&c->ranks[rank]);
	return now_ns();
}

void ranks_check_time(const struct rank_group *c, int i, uint64_t since, const char *file, int line)
{
	uint64_t told = c->pages[i].told_ns;
	if (!in_time(since, told))
		check_failed(file, line, "rank %d heard of it after %.1f ms", i,
			     (double)(told - since) / 1e6);
}
