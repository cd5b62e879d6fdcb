/* SPDX-License-Identifier: Apache-2.0
 * Processes that see only their own GPU, like one in a pod: if the others' memory can still be
 * mapped, kernels are used; if not, all operations automatically go to NCCL. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dropin_calls.h"
#include "runner.h"

#define PROC_DRIVER "/proc/driver"

/* ---- A process like one in a pod: in namespaces of its own, with the device file of one GPU ----
 */

static void make_file(const char *directory, const char *name)
{
	char path[96];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	CHECK(fd >= 0);
	close(fd);
}

/* The file of /dev, or on the stand-ins, an ordinary file. */
static void make_device(const char *directory, const char *name)
{
	char from[64], to[96];
	snprintf(from, sizeof(from), "/dev/%s", name);
	snprintf(to, sizeof(to), "%s/%s", directory, name);
	if (access(from, F_OK) < 0 && !setup.fake)
		return;
	make_file(directory, name);
	CHECK(access(from, F_OK) < 0 || !mount(from, to, NULL, MS_BIND, NULL));
}

static bool namespaces(int more)
{
	return !unshare(CLONE_NEWNS | more) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* As root, the driver's library would make the missing files. */
static void lose_mknod(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	CHECK(!prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0));
	CHECK(!syscall(SYS_capget, &header, data));
	data[0].effective &= ~(1u << CAP_MKNOD);
	data[0].permitted &= ~(1u << CAP_MKNOD);
	CHECK(!syscall(SYS_capset, &header, data));
}

static void own_device_only(int gpu)
{
	static const char *const common[] = {"null",	  "zero",	"urandom",
					     "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"};
	char own[16], directory[] = "/tmp/ncclsvc-dev-XXXXXX";
	snprintf(own, sizeof(own), "nvidia%d", gpu);
	CHECK(mkdtemp(directory));
	CHECK(!mount("devices", directory, "tmpfs", 0, NULL));
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		make_device(directory, common[i]);
	make_device(directory, own);
	CHECK(!mount(directory, "/dev", NULL, MS_MOVE, NULL));
	CHECK(!rmdir(directory));
	CHECK(!mkdir("/dev/shm", 01777));
	lose_mknod();
}

/* The rest of the process continues in a child, as only children enter a new PID namespace. The
 * stand-ins find each other's memory by pid, so there the pids stay. */
static void enter_pod(int gpu)
{
	int status;
	CHECK(namespaces(CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS |
			 (setup.fake ? 0 : CLONE_NEWPID)));
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid) {
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	CHECK(setup.fake || getpid() == 1);
	CHECK(setup.fake || !mount("proc", "/proc", "proc", 0, NULL));
	own_device_only(gpu);
}

/* The driver says which file belongs to a GPU; the stand-ins need this said for them. */
static void describe_stand_ins(void)
{
	char path[128];
	CHECK(!mount("driver", PROC_DRIVER, "tmpfs", 0, NULL));
	CHECK(!mkdir(PROC_DRIVER "/nvidia", 0755) && !mkdir(PROC_DRIVER "/nvidia/gpus", 0755));
	for (int i = 0; i < setup.gpus; i++) {
		snprintf(path, sizeof(path), PROC_DRIVER "/nvidia/gpus/0000:%02x:00.0", 0x10 + i);
		CHECK(!mkdir(path, 0755));
		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/information");
		FILE *f = fopen(path, "w");
		CHECK(f);
		fprintf(f, "Model: \t\t Fake GPU\nDevice Minor: \t %d\n", i);
		fclose(f);
	}
}

/* ---- Pods ---- */

struct pods {
	bool without_files; /* otherwise only CUDA_VISIBLE_DEVICES hides the other GPUs */
};

static void check_listed(const struct daemon *d, bool without_files)
{
	ncclsvc_session *session = session_open(d);
	ncclsvc_comm_info *list;
	size_t n, found = 0;
	CHECK_OK(ncclsvc_list_comms(session, &list, &n));
	for (size_t i = 0; i < n; i++) {
		if (list[i].state != NCCLSVC_COMM_READY)
			continue;
		CHECK_EQ(!list[i].peer_bytes, without_files);
		CHECK_EQ(list[i].peer_source == NCCLSVC_PEER_OUT_OF_REACH, without_files);
		found++;
	}
	CHECK(found > 0);
	ncclsvc_list_free(list);
	ncclsvc_close(session);
}

/* Call before CUDA is used. On real GPUs, a process sees no others than those whose files it has.
 */
static void hide_others(const struct client *c, bool without_files)
{
	char own[16];
	snprintf(own, sizeof(own), "%d", c->rank);
	if (without_files)
		enter_pod(c->rank);
	if (!without_files || setup.fake)
		CHECK_EQ(setenv("CUDA_VISIBLE_DEVICES", own, 1), 0);
}

static void pod(struct client *c)
{
	const struct pods *pods = c->arg;
	ncclComm_t comm, part;
	stage("joining");
	hide_others(c, pods->without_files);
	dropin_open(c->daemon);
	gpu_use(0);
	CHECK_NC(nc.ncclCommInitRank(&comm, c->nranks, dropin_id(c), c->rank));
	dropin_check_usable(comm);
	check_listed(c->daemon, pods->without_files);
	stage("splitting");
	CHECK_NC(nc.ncclCommSplit(comm, 0, c->rank, &part, NULL));
	dropin_check_usable(part);
	check_listed(c->daemon, pods->without_files);
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(part));
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_hidden(void)
{
	ranks_run(setup.gpus, pod, &(struct pods){0});
}

static void test_pods(void)
{
	if (!namespaces(0))
		skip_test("it needs mount namespaces, and so root: %s", strerror(errno));
	if (setup.fake)
		describe_stand_ins();
	ranks_run(setup.gpus, pod, &(struct pods){.without_files = true});
}

const struct gpu_test reach_tests[] = {
	{"reach/hidden", test_hidden, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{"reach/pods", test_pods, 2, 60, TEST_QUICK | TEST_ONE_NODE},
	{0},
};
