/* SPDX-License-Identifier: Apache-2.0
 * The judgement of `ncclsvc-ctl doctor`, on made-up facts. (tests/integration/test_devices.py tests
 * how it gathers them, on stand-ins for the driver.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "doctor/doctor.h"
#include "proto/abi/cuda_abi.h"

static struct doctor_facts facts;
static ncclsvc_device_info devices[2];
static struct doctor_report report;

/* Two GPUs and no problems, without MPS. */
static int set_up(void **state)
{
	(void)state;
	memset(&facts, 0, sizeof(facts));
	memset(devices, 0, sizeof(devices));
	facts.connected = true;
	facts.library = "1.2.3";
	strcpy(facts.socket, "/run/s");
	strcpy(facts.daemon.version, "1.2.3");
	facts.daemon.sessions_max = 10;
	facts.daemon.uid = 5;
	strcpy(facts.daemon.mps_text, "mps = off");
	facts.uid = 5;
	facts.devices = devices;
	facts.ndevices = 2;
	facts.driver = (struct doctor_driver){.cuda_open = true,
					      .cuda_init = true,
					      .listed = true,
					      .nccl_open = true,
					      .cuda_version = 13000,
					      .nccl_version = 22809,
					      .ngpus = 2};
	for (int i = 0; i < 2; i++) {
		devices[i] = (ncclsvc_device_info){
			.device = i, .state = NCCLSVC_DEVICE_READY, .name = "G"};
		devices[i].uuid[0] = facts.driver.gpus[i].uuid[0] = (uint8_t)(i + 1);
		strcpy(facts.driver.gpus[i].name, "G");
		facts.driver.gpus[i].peers = 3u & ~(1u << i);
	}
	static const char *const files[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0",
					    "/dev/nvidia1"};
	for (facts.nfiles = 0; facts.nfiles < 4; facts.nfiles++)
		strcpy(facts.files[facts.nfiles].path, files[facts.nfiles]);
	facts.memlock = facts.nofile = UINT64_MAX;
	facts.kernels = true;
	facts.shm_bytes = UINT64_C(1) << 34;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	doctor_free(&report);
	return 0;
}

static void judge(enum doctor_level worst)
{
	doctor_free(&report);
	doctor_judge(&facts, &report);
	for (size_t i = 0; i < report.n; i++)
		print_message("  %s: %s\n", doctor_level_name(report.checks[i].level),
			      report.checks[i].text);
	assert_int_equal(doctor_worst(&report), worst);
}

/* Checks that there is a finding with this name, level and text. */
static void says(const char *check, enum doctor_level level, const char *what)
{
	for (size_t i = 0; i < report.n; i++) {
		const struct doctor_check *c = &report.checks[i];
		if (!strcmp(c->check, check) && c->level == level && strstr(c->text, what))
			return;
	}
	fail_msg("no %s of %s says \"%s\"", doctor_level_name(level), check, what);
}

static void test_well(void **state)
{
	(void)state;
	judge(DOCTOR_NOTE);
	says("daemon", DOCTOR_OK, "ncclsvcd 1.2.3");
	says("device-files", DOCTOR_OK, "4 device files");
	says("driver", DOCTOR_OK, "CUDA 13.0");
	says("nccl", DOCTOR_OK, "2.28.9");
	says("devices", DOCTOR_OK, "Device 1 (G) is ready: this process's GPU 1.");
	says("peers", DOCTOR_OK, "All 2 GPUs");
	says("kernels", DOCTOR_OK, "direct transport's kernels");
	says("mps", DOCTOR_NOTE, "28 to 29 ms");
	says("mps", DOCTOR_NOTE, "Device 1, without MPS: as above.");
}

static void test_staged(void **state)
{
	(void)state;
	devices[0].transport = devices[1].transport = NCCLSVC_TRANSPORT_MPI;
	devices[1].nccl_version = 22809;
	judge(DOCTOR_WARNING);
	says("transport", DOCTOR_WARNING, "stages the memory of device 0 (G)");
	says("transport", DOCTOR_NOTE, "transport = mpi");
}

static void test_no_gpus(void **state)
{
	(void)state;
	facts.ndevices = facts.nfiles = 0;
	facts.driver = (struct doctor_driver){.cuda_text = "libcuda.so.1 cannot be opened"};
	judge(DOCTOR_NOTE);
	says("driver", DOCTOR_NOTE, "Host communicators do not need it");
	says("devices", DOCTOR_OK, "sees a GPU");
}

static void test_socket(void **state)
{
	(void)state;
	facts.connected = false;
	strcpy(facts.daemon_text, "no daemon listens");
	facts.socket_error = ENOENT;
	judge(DOCTOR_PROBLEM);
	says("socket", DOCTOR_PROBLEM, "There is no /run/s");
	facts.socket_error = EACCES;
	judge(DOCTOR_PROBLEM);
	says("socket", DOCTOR_PROBLEM, "has no access to the directory");
	facts.socket_error = 0;
	facts.socket_mode = S_IFREG | 0644;
	judge(DOCTOR_PROBLEM);
	says("socket", DOCTOR_PROBLEM, "is not a socket");
	facts.socket_mode = S_IFSOCK | 0660;
	facts.socket_gid = 42;
	judge(DOCTOR_PROBLEM);
	says("socket", DOCTOR_PROBLEM, "mode 0660, user 0, group 42");
	facts.socket_writable = true;
	judge(DOCTOR_PROBLEM);
	says("daemon", DOCTOR_PROBLEM, "Cannot use the daemon: no daemon listens.");
}

static void test_daemon(void **state)
{
	(void)state;
	strcpy(facts.daemon.version, "1.2.4");
	facts.daemon.draining = 1;
	facts.daemon.sessions = 10;
	judge(DOCTOR_WARNING);
	says("daemon", DOCTOR_NOTE, "ncclsvcd 1.2.4 (pid 0, uid 5) answers; this library is 1.2.3");
	says("daemon", DOCTOR_WARNING, "draining");
	says("daemon", DOCTOR_WARNING, "sessions_max");
}

static void test_device_files(void **state)
{
	(void)state;
	facts.files[2].error = EPERM;
	judge(DOCTOR_PROBLEM);
	says("device-files", DOCTOR_PROBLEM, "DeviceAllow=");
	facts.files[2].error = EACCES;
	judge(DOCTOR_PROBLEM);
	says("device-files", DOCTOR_PROBLEM, "Cannot open /dev/nvidia0");
	strcpy(facts.files[1].path, "/dev/nvidia1");
	facts.files[2].error = 0;
	judge(DOCTOR_WARNING);
	says("device-files", DOCTOR_WARNING, "/dev/nvidia-uvm, which is missing");
	facts.nfiles = 3; /* nvidiactl, nvidia1, nvidia0 */
	strcpy(facts.files[1].path, "/dev/nvidia-uvm");
	judge(DOCTOR_NOTE);
	says("device-files", DOCTOR_NOTE, "the device nodes of only 1 of 2 GPUs");
}

static void test_driver(void **state)
{
	(void)state;
	facts.driver.cuda_version = 11080;
	judge(DOCTOR_PROBLEM);
	says("driver", DOCTOR_PROBLEM, "CUDA 11.8, but 12.0 is needed");
	facts.driver.cuda_version = 12000;
	judge(DOCTOR_NOTE);
	facts.driver.cuda_init = facts.driver.listed = false;
	facts.driver.ngpus = 0;
	strcpy(facts.driver.cuda_text, "CUDA_ERROR_NO_DEVICE");
	judge(DOCTOR_PROBLEM);
	says("driver", DOCTOR_PROBLEM, "does not start: CUDA_ERROR_NO_DEVICE");
	facts.end = DOCTOR_CRASHED;
	facts.end_signal = 11;
	judge(DOCTOR_PROBLEM);
	says("driver", DOCTOR_PROBLEM, "killed by signal 11");
	facts.end = DOCTOR_HUNG;
	judge(DOCTOR_PROBLEM);
	says("driver", DOCTOR_PROBLEM, "a GPU may hang");
	facts.mps.state = MPS_RUNNING;
	judge(DOCTOR_PROBLEM);
	says("driver", DOCTOR_PROBLEM, "an MPS of its own");
}

static void test_devices(void **state)
{
	(void)state;
	devices[0].state = NCCLSVC_DEVICE_FAILED;
	strcpy(devices[0].text, "no \033 luck");
	devices[1].uuid[0] = 9;
	judge(DOCTOR_PROBLEM);
	says("devices", DOCTOR_PROBLEM, "no ? luck.");
	says("devices", DOCTOR_WARNING, "This process's GPU 1 (G, GPU-02");
	says("devices", DOCTOR_NOTE, "Device 1 (G) is ready: this process does not see it.");
	devices[0].state = NCCLSVC_DEVICE_LOST;
	judge(DOCTOR_WARNING);
	says("devices", DOCTOR_WARNING, "is lost: no ? luck.");
	facts.ndevices = 0;
	judge(DOCTOR_WARNING);
	says("devices", DOCTOR_WARNING, "The daemon uses no GPU, but this process sees 2.");
}

static void test_compute_mode(void **state)
{
	(void)state;
	facts.driver.gpus[1].mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
	judge(DOCTOR_PROBLEM);
	says("compute-mode", DOCTOR_PROBLEM, "nvidia-smi -i 1 -c DEFAULT");
	facts.driver.gpus[1].mps = NCCLSVC_MPS_ACTIVE;
	judge(DOCTOR_WARNING);
	says("compute-mode", DOCTOR_OK, "which is the MPS server");
	facts.driver.gpus[1].mode = CU_COMPUTEMODE_PROHIBITED;
	judge(DOCTOR_PROBLEM);
	says("compute-mode", DOCTOR_PROBLEM, "prohibits");
}

static void test_peers(void **state)
{
	(void)state;
	facts.driver.gpus[1].peers = 0;
	judge(DOCTOR_WARNING);
	says("peers", DOCTOR_WARNING,
	     "GPUs 0 and 1 cannot access each other's memory (of 1 pairs, 1)");
}

static void test_kernels(void **state)
{
	(void)state;
	facts.peer = "1";
	judge(DOCTOR_NOTE);
	says("kernels", DOCTOR_OK, "direct transport's kernels");
	facts.peer = "0";
	judge(DOCTOR_NOTE);
	says("kernels", DOCTOR_NOTE, "NCCLSVC_PEER is 0");
	facts.kernels = false;
	judge(DOCTOR_NOTE);
	says("kernels", DOCTOR_NOTE, "without nvcc or clang");
}

static bool tells_of(const char *check)
{
	for (size_t i = 0; i < report.n; i++)
		if (!strcmp(report.checks[i].check, check))
			return true;
	return false;
}

static void test_crossover(void **state)
{
	(void)state;
	judge(DOCTOR_NOTE);
	assert_false(tells_of("crossover")); /* an older daemon does not report it */
	devices[0].peer_source = NCCLSVC_PEER_MEASURED;
	devices[1].peer_source = NCCLSVC_PEER_DEFAULT;
	judge(DOCTOR_NOTE);
	says("crossover", DOCTOR_OK, "was measured");
	devices[1].peer_source = NCCLSVC_PEER_MEASURED;
	judge(DOCTOR_NOTE);
	says("crossover", DOCTOR_OK, "was measured");
	devices[0].peer_source = devices[1].peer_source = NCCLSVC_PEER_SET;
	judge(DOCTOR_NOTE);
	assert_false(tells_of("crossover"));
	devices[0].peer_source = devices[1].peer_source = NCCLSVC_PEER_DEFAULT;
	facts.kernels = false;
	judge(DOCTOR_NOTE);
	assert_false(tells_of("crossover"));
	facts.kernels = true;
	facts.ndevices = 1;
	judge(DOCTOR_WARNING); /* about the other GPU */
	assert_false(tells_of("crossover"));
}

static void test_shared_gpu(void **state)
{
	(void)state;
	judge(DOCTOR_NOTE);
	assert_false(tells_of("shared-gpu"));
	facts.shared_gpu = 1;
	strcpy(facts.shared_gpu_label, "tp");
	judge(DOCTOR_NOTE);
	says("shared-gpu", DOCTOR_NOTE, "1 communicator (tp) has two ranks on one GPU");
	facts.shared_gpu = 3;
	judge(DOCTOR_NOTE);
	says("shared-gpu", DOCTOR_NOTE, "3 communicators (tp and others) have");
}

static void test_connections(void **state)
{
	(void)state;
	judge(DOCTOR_NOTE);
	says("connections", DOCTOR_OK, "8 streams");
	facts.connections = "64"; /* more than CUDA accepts */
	judge(DOCTOR_NOTE);
	says("connections", DOCTOR_OK, "32 streams");
	facts.connections = "1";
	judge(DOCTOR_WARNING);
	says("connections", DOCTOR_WARNING, "CUDA_DEVICE_MAX_CONNECTIONS=1: when 1 of a process's");
	facts.connections = NULL;
	facts.driver.gpus[0].mps = NCCLSVC_MPS_ACTIVE;
	judge(DOCTOR_WARNING);
	says("connections", DOCTOR_WARNING, "is not set, and this process uses MPS: when 2 of");
}

/* Sets both sides of GPU i. */
static void use_mps(int i, uint64_t here, uint64_t worker)
{
	facts.driver.gpus[i].mps = here ? NCCLSVC_MPS_ACTIVE : NCCLSVC_MPS_NONE;
	facts.driver.gpus[i].mps_server = here;
	devices[i].mps = worker ? NCCLSVC_MPS_ACTIVE : NCCLSVC_MPS_NONE;
	devices[i].mps_server = worker;
}

static void test_mps(void **state)
{
	(void)state;
	facts.connections = "32";
	facts.daemon.mps = NCCLSVC_MPS_OWN;
	strcpy(facts.daemon.mps_text, "/run/m");
	use_mps(0, 7, 7);
	use_mps(1, 7, 7);
	judge(DOCTOR_OK);
	says("mps", DOCTOR_OK, "there is nothing to set");
	says("mps", DOCTOR_OK, "For other processes, set CUDA_MPS_PIPE_DIRECTORY=/run/m.");
	says("mps", DOCTOR_OK, "overlaps with compute");
	facts.mps_chosen = "/run/m"; /* set by hand, or inherited from a parent that selected it */
	judge(DOCTOR_OK);
	facts.mps_chosen = "/run/other";
	use_mps(0, 0, 7);
	use_mps(1, 8, 7);
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING,
	     "CUDA_MPS_PIPE_DIRECTORY is /run/other, but the workers use the MPS in /run/m: unset");
	says("mps", DOCTOR_WARNING, "Device 0: the worker uses MPS but this process does not");
	says("mps", DOCTOR_WARNING, "Device 1: this process and the worker use different MPS");
	facts.mps_chosen = NULL;
	use_mps(1, 0, 7);
	judge(DOCTOR_NOTE);
	says("mps", DOCTOR_NOTE, "for its own tenant (user 5): this process belongs to another");
	says("mps", DOCTOR_NOTE, "Device 0: the worker uses MPS but this process does not");
	strcpy(facts.mps.directory, "/run/m"); /* CUDA had been initialized before */
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING, "Device 0: the worker uses MPS but this process does not");
	facts.uid = 6;
	facts.mps_chosen = "/run/m"; /* with -multiuser-server */
	use_mps(0, 7, 7);
	use_mps(1, 7, 7);
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING, "user (6) and the daemon's (5) share an MPS server");
}

static void test_no_mps(void **state)
{
	(void)state;
	judge(DOCTOR_NOTE);
	says("mps", DOCTOR_NOTE, "do not use MPS: mps = off (");
	strcpy(facts.daemon.mps_text, "it is not installed");
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING,
	     "do not use MPS: it is not installed (mps in ncclsvcd.conf(5)).");
	facts.connections = "32";
	use_mps(0, 7, 0);
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING, "this process uses MPS but the worker does not");
	says("mps", DOCTOR_WARNING, "The worker was started before MPS");
	facts.mps_chosen = "/run/m";
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING,
	     "Unset CUDA_MPS_PIPE_DIRECTORY, or set mps in ncclsvcd.conf(5)");
	facts.mps = (struct mps){.state = MPS_REFUSED, .directory = "/run/m"};
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_WARNING, "User 5 may not connect");
	facts.mps.state = MPS_STALE;
	devices[0].mps = devices[1].mps = NCCLSVC_MPS_UNKNOWN;
	judge(DOCTOR_WARNING);
	says("mps", DOCTOR_NOTE, "has ended");
	says("mps", DOCTOR_NOTE, "is not known whether");
}

static void test_limits(void **state)
{
	(void)state;
	facts.nofile = 256;
	facts.memlock = 65536;
	facts.shm_bytes = 64 << 20;
	judge(DOCTOR_WARNING);
	says("files", DOCTOR_WARNING, "may open only 256 files");
	says("memlock", DOCTOR_NOTE, "may lock 64 KiB");
	says("shm", DOCTOR_WARNING, "has only 64 MiB");
	facts.shm_error = ENOENT;
	judge(DOCTOR_WARNING);
	says("shm", DOCTOR_WARNING, "/dev/shm: No such file or directory");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_well),      TEST(test_staged),      TEST(test_no_gpus),
		TEST(test_socket),    TEST(test_daemon),      TEST(test_device_files),
		TEST(test_driver),    TEST(test_devices),     TEST(test_compute_mode),
		TEST(test_peers),     TEST(test_kernels),     TEST(test_mps),
		TEST(test_limits),    TEST(test_connections), TEST(test_no_mps),
		TEST(test_crossover), TEST(test_shared_gpu),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
