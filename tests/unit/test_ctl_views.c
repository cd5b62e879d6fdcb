/* SPDX-License-Identifier: Apache-2.0
 * What the commands print, from made-up lists. JSON is read back by an independent parser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "views/view.h"

#define MANY 100000

static const ncclsvc_session_info sessions[] = {
	{.session = 1,
	 .pid = 100,
	 .uid = 7,
	 .ring_entries = 1024,
	 .mps = NCCLSVC_MPS_ACTIVE,
	 .name = "trainer-\"0\"\n",
	 .job = "slurm 12.0",
	 .cgroup = "job_12/step_0",
	 .tenant = "job_12"},
	{.session = 2,
	 .pid = 101,
	 .submitted = 9,
	 .failed = 1,
	 .mps = NCCLSVC_MPS_UNKNOWN,
	 .name = "bad\xff\033[2J",
	 .cgroup = "train.service"},
};
static const ncclsvc_comm_info comms[] = {
	{.comm = 5,
	 .nranks = 3,
	 .joined = 2,
	 .epoch = 2,
	 .state = NCCLSVC_COMM_BROKEN,
	 .pending = 1,
	 .age_ns = 2000000000,
	 .label = "world",
	 .job = "slurm 12.0",
	 .tenant = "job_12",
	 .admit = NCCLSVC_ADMIT_USER},
	{.comm = 6, .nranks = 2, .state = NCCLSVC_COMM_IDLE, .label = "idle one"},
	{.comm = 7,
	 .nranks = 2,
	 .joined = 2,
	 .state = NCCLSVC_COMM_READY,
	 .epoch_state = NCCLSVC_EPOCH_RUNNING,
	 .epoch_state_ns = 5,
	 .epoch_faults = 3,
	 .epoch_step_count = 2,
	 .epoch_steps = {{NCCLSVC_EPOCH_RUNNING, NCCLSVC_CAUSE_STARTED, 5},
			 {NCCLSVC_EPOCH_ACQUIRING, NCCLSVC_CAUSE_GPUS_AWAITED, 6}},
	 .peer_bytes = 8 << 20,
	 .peer_source = NCCLSVC_PEER_MEASURED,
	 .label = "gpus"},
};
static const ncclsvc_member_info members[] = {
	{.comm = 5,
	 .rank = 0,
	 .state = NCCLSVC_MEMBER_JOINING,
	 .session = 1,
	 .pid = 100,
	 .epoch = 2,
	 .device = -1},
	{.comm = 5, .rank = 2, .state = NCCLSVC_MEMBER_DEAD, .pid = 102, .epoch = 2, .device = -1},
	{.comm = 7,
	 .rank = 0,
	 .state = NCCLSVC_MEMBER_JOINED,
	 .session = 1,
	 .device = 1,
	 .transport = NCCLSVC_TRANSPORT_MPI},
	{.comm = 7, .rank = 1, .state = NCCLSVC_MEMBER_JOINED, .session = 2, .device = 0},
};
static const ncclsvc_task_info tasks[] = {
	{.task = 11,
	 .comm = 5,
	 .seq = 4,
	 .count = 1000,
	 .bytes = 4000,
	 .op = NCCLSVC_ALL_REDUCE,
	 .type = NCCLSVC_FLOAT32,
	 .redop = NCCLSVC_MAX,
	 .state = NCCLSVC_WAITING_PEERS,
	 .peer = -1,
	 .pid = 100,
	 .session = 1,
	 .epoch = 2,
	 .nranks = 20,
	 .age_ns = 3000000000,
	 .state_ns = 2000000000,
	 .tenant = "pod 7",
	 .waits_count = 12,
	 .waits_for = {1, 2, 3, 4, 5, 6, 7, 8}},
	{.task = 10,
	 .comm = 5,
	 .seq = 3,
	 .op = NCCLSVC_BARRIER,
	 .state = NCCLSVC_LAUNCHED,
	 .rank = 1,
	 .peer = -1,
	 .pid = 101,
	 .session = 2,
	 .epoch = 2,
	 .nranks = 20,
	 .group = 8,
	 .age_ns = 4000000000},
	{.task = 12,
	 .comm = 9,
	 .seq = 0,
	 .count = 1,
	 .bytes = 2,
	 .op = NCCLSVC_SEND,
	 .type = NCCLSVC_BFLOAT16,
	 .state = NCCLSVC_QUEUED,
	 .rank = 1,
	 .peer = 0,
	 .pid = 101,
	 .session = 2,
	 .nranks = 2,
	 .age_ns = 1000},
};
static const ncclsvc_region_info regions[] = {
	{.session = 2, .region = 1, .pid = 101, .bytes = 100},
	{.session = 1, .region = 1, .pid = 100, .bytes = 4096},
	{.session = 3, .region = 1, .pid = 100, .bytes = 1048576},
	{.session = 1, .region = 2, .pid = 100, .bytes = 4096},
	{.session = 2, .region = 2, .pid = 101, .kind = 1, .bytes = 2097152, .device = 1},
	{.session = 2, .region = 3, .pid = 101, .kind = 2, .bytes = 1048576, .device = 0},
	{.session = 2, .region = 4, .pid = 101, .kind = 3, .bytes = 1048576, .device = 0},
};
static const ncclsvc_device_info devices[] = {
	{.device = 0,
	 .state = NCCLSVC_DEVICE_READY,
	 .pid = 60,
	 .uuid = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76,
		  0x54, 0x32, 0x10},
	 .memory_bytes = UINT64_C(141) << 30,
	 .worker_bytes = UINT64_C(1) << 30,
	 .import_bytes = 3072,
	 .imports = 3,
	 .device_file = 2,
	 .nccl_comms = 4,
	 .nccl_comms_idle = 1,
	 .driver_version = 13000,
	 .nccl_version = 22809,
	 .mps = NCCLSVC_MPS_ACTIVE,
	 .mps_server = 77,
	 .age_ns = 65000000000,
	 .name = "GPU of ours"},
	{.device = 1,
	 .state = NCCLSVC_DEVICE_LOST,
	 .restarts = 2,
	 .transport = NCCLSVC_TRANSPORT_MPI,
	 .driver_version = 13000,
	 .nccl_version = 22809,
	 .age_ns = 1500000000,
	 .name = "GPU of \033ours",
	 .text = "the worker was ended by signal 9"},
};

static const ncclsvc_lateness_info lateness[] = {
	{.comm = 5,
	 .rank = 1,
	 .pid = 101,
	 .operations = 200,
	 .last = 197,
	 .kinds = 1u << NCCLSVC_ALL_REDUCE,
	 .sum_ns = 60000000000,
	 .median_ns = 300000000,
	 .p99_ns = 310000000,
	 .max_ns = 320000000,
	 .interval_ns = 1000000000,
	 .histogram = {[0] = 3, [19] = 197}},
	{.comm = 5, .pid = 100, .operations = 200, .histogram = {200}},
	{.comm = 7,
	 .rank = 1,
	 .pid = 101,
	 .kernel_waits = 40,
	 .kernel_waited_ns = 380000000,
	 .kernel_window_ns = 1000000000},
};

static struct snapshot snapshot(void)
{
	struct snapshot s = {
		.daemon = {.version = "1.2.3",
			   .protocol_min = 1,
			   .protocol_max = 2,
			   .pid = 50,
			   .sessions = 2,
			   .sessions_max = 16,
			   .uptime_ns = 60000000000,
			   .mps = NCCLSVC_MPS_OWN,
			   .mps_pid = 123,
			   .mps_starts = 1,
			   .mps_text = "/run/m",
			   .last_failure = {.result = NCCLSVC_PEER_GONE, .rank_a = 2, .pid_a = 102},
			   .last_failure_comm = 5,
			   .last_failure_age_ns = 1500000000},
		.sessions = (ncclsvc_session_info *)sessions,
		.comms = (ncclsvc_comm_info *)comms,
		.members = (ncclsvc_member_info *)members,
		.tasks = (ncclsvc_task_info *)tasks,
		.regions = (ncclsvc_region_info *)regions,
		.devices = (ncclsvc_device_info *)devices,
		.nsessions = 2,
		.ncomms = 3,
		.nmembers = 4,
		.ntasks = 3,
		.nregions = 7,
		.ndevices = 2,
		.lateness = (ncclsvc_lateness_info *)lateness,
		.nlateness = 3,
	};

	return s;
}

/* Runs a command on the lists above and returns what it prints. */
static char *shown(void (*view)(const struct view *), struct ctl_args args)
{
	struct snapshot s = snapshot();
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args, .s = &s, .out = &out, .time = "2031-04-05T06:07:08.910Z"};

	view(&v);
	return text_steal(&out);
}

static struct ctl_args command(enum ctl_command which, bool json)
{
	return (struct ctl_args){.command = which, .json = json, .rank = -1, .pid = -1};
}

static json_t *parsed(char *s, const char *name)
{
	json_error_t error;
	json_t *root = json_loads(s, JSON_REJECT_DUPLICATES, &error);

	if (!root)
		fail_msg("%s: at %d in %s", error.text, error.position, s);
	assert_non_null(strchr(s, '\n'));
	assert_string_equal(strchr(s, '\n'), "\n");
	assert_int_equal(json_integer_value(json_object_get(root, "schema")), 1);
	assert_string_equal(json_string_value(json_object_get(root, "command")), name);
	assert_string_equal(json_string_value(json_object_get(root, "time")),
			    "2031-04-05T06:07:08.910Z");
	free(s);
	return root;
}

static const char *str(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static json_int_t num(const json_t *o, const char *key)
{
	const json_t *value = json_object_get(o, key);

	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static void test_tasks_json(void **state)
{
	(void)state;
	json_t *root = parsed(shown(view_tasks, command(CTL_TASKS, true)), "tasks");
	json_t *list = json_object_get(root, "tasks"), *t;

	assert_int_equal(num(root, "total"), 3);
	assert_int_equal(json_array_size(list), 3);
	t = json_array_get(list, 0);
	assert_int_equal(num(t, "task"), 10);
	assert_string_equal(str(t, "op"), "Barrier");
	assert_true(json_is_null(json_object_get(t, "type")));
	assert_true(json_is_null(json_object_get(t, "redop")));
	assert_int_equal(num(t, "group"), 8);
	t = json_array_get(list, 1);
	assert_int_equal(num(t, "seq"), 4);
	assert_string_equal(str(t, "state"), "waiting-peers");
	assert_string_equal(str(t, "label"), "world");
	assert_string_equal(str(t, "type"), "float32");
	assert_string_equal(str(t, "redop"), "max");
	assert_int_equal(num(t, "bytes"), 4000);
	assert_int_equal(num(t, "age_ns"), 3000000000);
	assert_int_equal(num(t, "state_ns"), 2000000000);
	assert_int_equal(num(t, "waits_count"), 12);
	assert_int_equal(json_array_size(json_object_get(t, "waits_for")), 8);
	assert_true(json_is_null(json_object_get(t, "peer")));
	assert_true(json_is_null(json_object_get(t, "group")));
	t = json_array_get(list, 2);
	assert_int_equal(num(t, "peer"), 0);
	assert_true(json_is_null(json_object_get(t, "label")));
	json_decref(root);
}

static void test_tasks_table(void **state)
{
	struct ctl_args args = command(CTL_TASKS, false);
	char *s = shown(view_tasks, args);

	(void)state;
	assert_non_null(
		strstr(s, "11  waiting-peers  3.0 s  world    4  AllReduce  float32   "
			  "max         1000  3.9 KiB     0  100  pod 7   1, 2, 3, 4, 5, 6, 7, 8 "
			  "(+4)\n"));
	assert_non_null(strstr(s, "10  launched"));
	assert_true(strstr(s, "10  launched") < strstr(s, "11  waiting"));
	free(s);
	args.sort = CTL_SORT_AGE;
	args.limit = 1;
	s = shown(view_tasks, args);
	assert_non_null(strstr(s, "10  launched"));
	assert_null(strstr(s, "11  waiting"));
	assert_non_null(strstr(s, "1 of 3 tasks shown.\n"));
	free(s);
}

static void test_tasks_filters(void **state)
{
	struct ctl_args rows[] = {
		{.comm = "world", .rank = 0, .pid = -1},
		{.comm = "5", .rank = -1, .pid = 100},
		{.state = NCCLSVC_WAITING_PEERS, .rank = -1, .pid = -1},
		{.stuck_ns = 2000000000, .rank = 0, .pid = -1},
		{.job = "slurm 12.*", .rank = 0, .pid = -1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		rows[i].command = CTL_TASKS;
		rows[i].json = true;
		json_t *root = parsed(shown(view_tasks, rows[i]), "tasks");
		json_t *list = json_object_get(root, "tasks");
		assert_int_equal(json_array_size(list), 1);
		assert_int_equal(num(json_array_get(list, 0), "task"), 11);
		json_decref(root);
	}
	rows[0].comm = "nowhere";
	rows[0].json = false;
	char *s = shown(view_tasks, rows[0]);
	assert_string_equal(s, "No task matches.\n");
	free(s);
}

static size_t listed(void (*view)(const struct view *v), enum ctl_command what, const char *list,
		     const char *job)
{
	struct ctl_args args = command(what, true);
	args.job = job;
	args.all = true;
	json_t *root = parsed(shown(view, args), ctl_command_name(what));
	const size_t n = json_array_size(json_object_get(root, list));
	json_decref(root);
	return n;
}

static void test_jobs(void **state)
{
	static const struct {
		const char *job;
		size_t sessions, comms;
	} rows[] = {
		{"slurm 12.0", 1, 1}, {"slurm 12.*", 1, 1},
		{"slurm 12", 0, 0},   {"train.service", 1, 0},
		{"*", 2, 3},	      {"job_12/step_0", 0, 0},
		{"[", 0, 0},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *job = rows[i].job;
		assert_int_equal(listed(view_sessions, CTL_SESSIONS, "sessions", job),
				 rows[i].sessions);
		assert_int_equal(listed(view_comms, CTL_COMMS, "comms", job), rows[i].comms);
	}
	json_t *root = parsed(shown(view_sessions, command(CTL_SESSIONS, true)), "sessions");
	json_t *list = json_object_get(root, "sessions");
	assert_string_equal(str(json_array_get(list, 0), "job"), "slurm 12.0");
	assert_string_equal(str(json_array_get(list, 0), "cgroup"), "job_12/step_0");
	assert_true(json_is_null(json_object_get(json_array_get(list, 1), "job")));
	json_decref(root);
	char *s = shown(view_sessions, command(CTL_SESSIONS, false));
	assert_non_null(strstr(s, "  slurm 12.0  "));
	assert_non_null(strstr(s, "  train.service  "));
	free(s);
	s = shown(view_comms, command(CTL_COMMS, false));
	assert_non_null(strstr(s, "  slurm 12.0  "));
	free(s);
}

static void test_sessions(void **state)
{
	(void)state;
	json_t *root = parsed(shown(view_sessions, command(CTL_SESSIONS, true)), "sessions");
	json_t *list = json_object_get(root, "sessions");

	assert_int_equal(json_array_size(list), 2);
	assert_string_equal(str(json_array_get(list, 0), "name"), "trainer-\"0\"\n");
	assert_string_equal(str(json_array_get(list, 1), "name"), "bad?\033[2J");
	assert_string_equal(str(json_array_get(list, 0), "mps"), "yes");
	assert_true(json_is_null(json_object_get(json_array_get(list, 1), "mps")));
	assert_string_equal(str(json_array_get(list, 0), "tenant"), "job_12");
	assert_true(json_is_null(json_object_get(json_array_get(list, 1), "tenant")));
	json_decref(root);
	char *s = shown(view_sessions, command(CTL_SESSIONS, false));
	assert_non_null(strstr(s, "trainer-\"0\"?"));
	assert_non_null(strstr(s, "bad??[2J"));
	assert_non_null(strstr(s, "  7  job_12  trainer-"));
	assert_null(strchr(s, '\033'));
	assert_non_null(strstr(s, "  yes\n"));
	assert_non_null(strstr(s, "  -\n"));
	free(s);
}

static void test_comms(void **state)
{
	struct ctl_args args = command(CTL_COMMS, false);
	char *s = shown(view_comms, args);

	(void)state;
	assert_non_null(strstr(s, "world  broken       2  2 of 3"));
	assert_non_null(strstr(s, "-     1, 2\n"));
	assert_non_null(strstr(s, "1, 0 by mpi  8.0 MiB (measured)  -     -\n"));
	assert_non_null(strstr(s, "gpus   running "));
	assert_non_null(strstr(s, "1 idle, shown with --all.\n"));
	assert_null(strstr(s, "idle one"));
	free(s);
	args.members = true;
	s = shown(view_comms, args);
	assert_non_null(strstr(s, "dead"));
	assert_non_null(strstr(s, "host"));
	free(s);
	args = command(CTL_COMMS, true);
	args.all = true;
	json_t *root = parsed(shown(view_comms, args), "comms");
	json_t *list = json_object_get(root, "comms");
	assert_int_equal(json_array_size(list), 3);
	json_t *m = json_array_get(json_object_get(json_array_get(list, 0), "members"), 1);
	assert_string_equal(str(m, "state"), "dead");
	assert_int_equal(num(m, "pid"), 102);
	assert_int_equal(num(m, "device"), -1);
	assert_true(json_is_null(json_object_get(m, "node")));
	assert_string_equal(str(json_array_get(list, 0), "memory"), "host");
	assert_string_equal(str(json_array_get(list, 2), "memory"), "cuda");
	assert_true(json_is_null(json_object_get(json_array_get(list, 0), "transport")));
	assert_string_equal(str(json_array_get(list, 2), "transport"), "mpi");
	assert_string_equal(str(json_array_get(list, 0), "tenant"), "job_12");
	assert_string_equal(str(json_array_get(list, 0), "admit"), "user");
	assert_true(json_is_null(json_object_get(json_array_get(list, 2), "admit")));
	/* A daemon that does not report it, and one that does. */
	assert_true(json_is_null(json_object_get(json_array_get(list, 0), "epoch_state")));
	assert_true(json_is_null(json_object_get(json_array_get(list, 0), "transitions")));
	assert_string_equal(str(json_array_get(list, 2), "epoch_state"), "running");
	assert_int_equal(num(json_array_get(list, 2), "epoch_state_ns"), 5);
	assert_int_equal(num(json_array_get(list, 2), "peer_bytes"), 8 << 20);
	assert_string_equal(str(json_array_get(list, 2), "peer_source"), "measured");
	assert_true(json_is_null(json_object_get(json_array_get(list, 0), "peer_source")));
	json_t *steps = json_object_get(json_array_get(list, 2), "transitions");
	assert_int_equal(json_array_size(steps), 2);
	assert_string_equal(str(json_array_get(steps, 1), "to"), "acquiring");
	assert_string_equal(str(json_array_get(steps, 1), "cause"), "gpus-awaited");
	assert_int_equal(num(json_array_get(steps, 1), "age_ns"), 6);
	json_decref(root);
}

static void test_memory(void **state)
{
	(void)state;
	json_t *root = parsed(shown(view_memory, command(CTL_MEMORY, true)), "memory");
	json_t *p = json_object_get(root, "processes");

	assert_int_equal(num(root, "bytes"), 5 * 1048576 + 2 * 4096 + 100);
	json_t *list = json_object_get(root, "regions");
	assert_int_equal(json_array_size(list), 7);
	assert_int_equal(json_array_size(p), 2);
	assert_int_equal(num(json_array_get(p, 0), "pid"), 100);
	assert_int_equal(num(json_array_get(p, 0), "sessions"), 2);
	assert_int_equal(num(json_array_get(p, 0), "regions"), 3);
	assert_int_equal(num(json_array_get(p, 0), "bytes"), 1048576 + 2 * 4096);
	assert_int_equal(num(json_array_get(p, 0), "device_bytes"), 0);
	assert_int_equal(num(json_array_get(p, 1), "device_bytes"), 4194304);
	static const char *const kinds[] = {"memfd", "cuda-ipc", "cuda-vmm", "cuda-range"};
	static const int device[] = {-1, 1, 0, 0};
	for (size_t i = 0; i < 4; i++) {
		json_t *r = json_array_get(list, 3 + i);
		assert_string_equal(str(r, "kind"), kinds[i]);
		assert_int_equal(num(r, "device"), device[i]);
	}
	json_decref(root);
	char *s = shown(view_memory, command(CTL_MEMORY, false));
	assert_non_null(strstr(s, "memfd         host    100 B"));
	assert_non_null(strstr(s, "cuda-ipc         1  2.0 MiB"));
	assert_non_null(strstr(s, "7 regions, 5.0 MiB in all, 4.0 MiB of it on GPUs.\n"));
	free(s);
}

static void test_lateness(void **state)
{
	(void)state;
	char *s = shown(view_lateness, command(CTL_LATENESS, false));
	assert_non_null(strstr(s,
			       "COMM  LABEL  RANK  PID  NODE  OPS  LAST%  MEDIAN     P99     MAX  "
			       "DIRECT%"));
	assert_non_null(strstr(s,
			       "   5  world     1  101  -     200     98  300 ms  310 ms  320 ms  "
			       "      -"));
	assert_non_null(strstr(s,
			       "   7  gpus      1  101  -       0      -       -       -       -  "
			       "     38"));
	assert_non_null(
		strstr(s, "Rank 1 (pid 101) was last in 98 % of AllReduces on communicator "
			  "world, by 300 ms (median). Next: `ncclsvc-ctl lateness --comm 5`."));
	free(s);
	json_t *root = parsed(shown(view_lateness, command(CTL_LATENESS, true)), "lateness");
	const json_t *first = json_array_get(json_object_get(root, "lateness"), 0);
	const json_t *straggler = json_object_get(root, "straggler");
	assert_int_equal(json_array_size(json_object_get(root, "lateness")), 3);
	assert_int_equal(num(first, "last"), 197);
	assert_int_equal(num(first, "median_ns"), 300000000);
	assert_int_equal(json_array_size(json_object_get(first, "histogram")),
			 NCCLSVC_LATENESS_BINS);
	assert_int_equal(num(straggler, "pid"), 101);
	assert_true(json_is_null(json_object_get(straggler, "node")));
	json_decref(root);
	struct ctl_args args = command(CTL_LATENESS, false);
	args.comm = "gpus";
	s = shown(view_lateness, args);
	assert_null(strstr(s, "300 ms  "));
	assert_non_null(strstr(s, "gpus"));
	free(s);
}

static char *straggler_of(ncclsvc_lateness_info x)
{
	struct ctl_args args = command(CTL_WHY, false);
	struct snapshot s = {.lateness = &x, .nlateness = 1};
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args, .s = &s, .out = &out, .time = "now"};
	view_straggler(&v);
	return text_steal(&out);
}

/* Nodes 0, which was asked, and 1; node 2 does not answer. */
static char *failures_of_nodes(bool json, const char *comm)
{
	static ncclsvc_failure_info failures[] = {
		{.failure = 17,
		 .unix_ns = 2000000000,
		 .comm = 5,
		 .pending = 2,
		 .epoch = 3,
		 .nranks = 4,
		 .kind = NCCLSVC_FAILURE_EPOCH,
		 .rank = 3,
		 .pid = 103,
		 .node = 1,
		 .host = "b",
		 .label = "world",
		 .text = "2 pending tasks fail"},
		{.cause = UINT64_C(2) << 48 | 3,
		 .unix_ns = 1000000000,
		 .comm = UINT64_C(2) << 48 | 8,
		 .rank = -1,
		 .node = -1,
		 .label = "other",
		 .text = "JOIN"},
	};
	static ncclsvc_failure_info far;
	static ncclsvc_node_info nodes[] = {
		{.node = 0, .state = NCCLSVC_NODE_SELF, .host = "a"},
		{.node = 1, .state = NCCLSVC_NODE_ALIVE, .host = "b"},
		{.node = 2, .state = NCCLSVC_NODE_ALIVE, .host = "c", .pid = 77}};
	static struct snapshot_answer answers[] = {
		{.asked = true}, {.asked = true}, {.asked = true, .result = NCCLSVC_TIMEOUT}};
	far = failures[0];
	far.failure = UINT64_C(2) << 48 | 3;
	far.pending = 1;
	far.ended = 1;
	snprintf(far.text, sizeof(far.text), "1 pending task fails");
	failures[1].failure = UINT64_C(2) << 48 | 4;
	ncclsvc_failure_info all[] = {failures[0], failures[1], far};
	struct ctl_args args = command(CTL_FAILURES, json);
	args.comm = comm;
	struct snapshot s = {
		.failures = all, .nfailures = 3, .nodes = nodes, .nnodes = 3, .answers = answers};
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args, .s = &s, .out = &out, .time = "2031-04-05T06:07:08.910Z"};
	view_failures(&v);
	return text_steal(&out);
}

static void test_failures_of_nodes(void **state)
{
	(void)state;
	char *s = failures_of_nodes(false, NULL);
	const char *join = strstr(s, "4@1 "), *killed = strstr(s, "3@1 19");
	assert_ptr_equal(join, s);
	assert_true(killed > join);
	assert_non_null(strstr(join, "JOIN. It follows from failure 3@1.\n3@1 "));
	assert_non_null(strstr(killed,
			       "world (epoch 3, 4 ranks): 1 pending task fails; on node 1 "
			       "(b). Also recorded as 17@0; in all, 3 pending tasks failed. "
			       "Then rank 0 ended, too.\n"));
	assert_non_null(strstr(killed, "Node 2 (c, ncclsvcd's pid 77) does not answer"));
	free(s);
	json_t *root = parsed(failures_of_nodes(true, "8@1"), "failures");
	assert_int_equal(json_array_size(json_object_get(root, "failures")), 1);
	assert_int_equal(json_array_size(json_object_get(root, "answers")), 3);
	json_decref(root);
	root = parsed(failures_of_nodes(true, "5"), "failures");
	const json_t *f = json_array_get(json_object_get(root, "failures"), 0);
	const json_t *also = json_array_get(json_object_get(f, "also"), 0);
	assert_int_equal(num(f, "node"), 1);
	assert_int_equal(num(f, "failure"), 3);
	assert_int_equal(num(f, "pending"), 3);
	assert_int_equal(num(also, "node"), 0);
	assert_int_equal(num(also, "failure"), 17);
	json_decref(root);
}

/* Lateness that is not worth a sentence. */
static void test_no_straggler(void **state)
{
	(void)state;
	ncclsvc_lateness_info few = lateness[0], seldom = few, quick = few, little = few;
	few.operations = few.last = 19;
	seldom.last = seldom.operations / 2;
	quick.median_ns = 1000000;
	little.median_ns = little.interval_ns / 10;
	const ncclsvc_lateness_info none[] = {few, seldom, quick, little};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		char *s = straggler_of(none[i]);
		assert_string_equal(s, "");
		free(s);
	}
	char *s = straggler_of(lateness[2]);
	assert_string_equal(s, "Kernels on communicator 7 wait for rank 1 (pid 101) 38 % of the "
			       "time, 9 ms each (mean). "
			       "Next: `ncclsvc-ctl lateness --comm 7`.\n");
	free(s);
}

static void test_devices(void **state)
{
	(void)state;
	json_t *root = parsed(shown(view_devices, command(CTL_DEVICES, true)), "devices");
	json_t *list = json_object_get(root, "devices"), *d = json_array_get(list, 0);

	assert_int_equal(json_array_size(list), 2);
	static const struct {
		const char *key;
		json_int_t value;
	} numbers[] = {
		{"device", 0},
		{"state_ns", 65000000000},
		{"pid", 60},
		{"restarts", 0},
		{"memory_bytes", INT64_C(141) << 30},
		{"worker_bytes", 1 << 30},
		{"imports", 3},
		{"import_bytes", 3072},
		{"nccl_comms", 4},
		{"nccl_comms_idle", 1},
		{"mps_server", 77},
	};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		assert_int_equal(num(d, numbers[i].key), numbers[i].value);
	assert_string_equal(str(d, "uuid"), "GPU-01234567-89ab-cdef-fedc-ba9876543210");
	assert_string_equal(str(d, "name"), "GPU of ours");
	assert_string_equal(str(d, "state"), "ready");
	assert_string_equal(str(d, "driver_version"), "13.0");
	assert_string_equal(str(d, "nccl_version"), "2.28.9");
	assert_string_equal(str(d, "mps"), "yes");
	assert_true(json_is_null(json_object_get(d, "text")));
	d = json_array_get(list, 1);
	assert_true(json_is_null(json_object_get(d, "pid")));
	assert_true(json_is_null(json_object_get(d, "mps_server")));
	assert_string_equal(str(d, "transport"), "mpi");
	assert_string_equal(str(d, "text"), "the worker was ended by signal 9");
	json_decref(root);
	char *s = shown(view_devices, command(CTL_DEVICES, false));
	assert_string_equal(
		s, "DEVICE  NAME          STATE    FOR  WORKER  RESTARTS     MEMORY    TAKEN  "
		   "IMPORTS  "
		   "IMPORTED  COMMS  IDLE  MPS  TRANSPORT  UUID\n"
		   "     0  GPU of ours   ready  1m05s      60         0  141.0 GiB  1.0 GiB       "
		   " 3   "
		   "3.0 KiB      4     1  yes  nccl       "
		   "GPU-01234567-89ab-cdef-fedc-ba9876543210\n"
		   "     1  GPU of ?ours  lost   1.5 s       -         2        0 B      0 B       "
		   " 0       "
		   "0 B      0     0  no   mpi        "
		   "GPU-00000000-0000-0000-0000-000000000000\n"
		   "CUDA driver 13.0, NCCL 2.28.9.\n"
		   "Device 1, last trouble: the worker was ended by signal 9\n");
	free(s);
}

static const struct process *frozen(int32_t pid, bool closely, void *arg)
{
	static const struct process p = {.state = PROCESS_FROZEN};

	(void)pid;
	(void)closely;
	(void)arg;
	return &p;
}

/* A worker that cannot run is not ready, whatever the daemon believes. */
static void test_halted_worker(void **state)
{
	(void)state;
	struct snapshot s = snapshot();
	struct ctl_args args = command(CTL_DEVICES, true);
	struct text out = TEXT_INIT(-1);
	struct view v = {.args = &args,
			 .s = &s,
			 .out = &out,
			 .time = "2031-04-05T06:07:08.910Z",
			 .look = frozen};

	view_devices(&v);
	json_t *root = parsed(text_steal(&out), "devices");
	json_t *list = json_object_get(root, "devices");
	assert_string_equal(str(json_array_get(list, 0), "state"), "frozen");
	assert_string_equal(str(json_array_get(list, 1), "state"), "lost");
	json_decref(root);
}

static void test_status(void **state)
{
	(void)state;
	json_t *root = parsed(shown(view_status, command(CTL_STATUS, true)), "status");
	json_t *s = json_object_get(root, "status"), *f = json_object_get(s, "last_failure"),
	       *m = json_object_get(s, "mps");

	assert_string_equal(str(s, "version"), "1.2.3");
	assert_int_equal(num(s, "uptime_ns"), 60000000000);
	assert_true(json_is_false(json_object_get(s, "draining")));
	assert_int_equal(num(s, "devices"), 2);
	assert_int_equal(num(s, "devices_ready"), 1);
	assert_int_equal(num(s, "epoch_faults"), 3);
	assert_true(json_is_null(json_object_get(s, "nodes")));
	assert_string_equal(str(m, "source"), "own");
	assert_string_equal(str(m, "directory"), "/run/m");
	assert_int_equal(num(m, "pid"), 123);
	assert_int_equal(num(m, "workers_lost"), 0);
	assert_int_equal(json_integer_value(json_array_get(json_object_get(m, "trainers_with"), 0)),
			 100);
	assert_int_equal(json_array_size(json_object_get(m, "trainers_without")), 0);
	assert_string_equal(str(f, "result"), "PEER_GONE");
	assert_int_equal(num(f, "comm"), 5);
	json_decref(root);
	char *text = shown(view_status, command(CTL_STATUS, false));
	assert_non_null(strstr(text, "ncclsvcd 1.2.3, protocol 1 to 2, pid 50"));
	assert_non_null(strstr(text, "2 of 16"));
	assert_non_null(strstr(text, "devices        2: 1 ready, 1 lost\n"));
	assert_non_null(strstr(text, "MPS            its own: control daemon 123"));
	char sentence[VIEW_SENTENCE];
	struct snapshot snap = snapshot();
	ncclsvc_status_sentence(&snap.daemon.last_failure, sentence, sizeof(sentence));
	assert_non_null(strstr(text, sentence));
	assert_non_null(strstr(text, "1.5 s ago"));
	free(text);
}

/* Checks the line of `status` with the first nsessions of these sessions. */
static void mps_says(const ncclsvc_daemon_info *daemon, size_t nsessions, const char *line)
{
	static const ncclsvc_session_info trainers[] = {
		{.session = 1, .pid = 77, .mps = NCCLSVC_MPS_NONE},
		{.session = 2, .pid = 70, .mps = NCCLSVC_MPS_ACTIVE},
		{.session = 3, .pid = 71, .mps = NCCLSVC_MPS_ACTIVE},
		{.session = 4, .pid = 70, .mps = NCCLSVC_MPS_ACTIVE}, /* its other GPU */
		{.session = 5,
		 .pid = 77,
		 .mps = NCCLSVC_MPS_ACTIVE}, /* another of the same process */
		{.session = 6, .pid = 5, .mps = NCCLSVC_MPS_UNKNOWN},
		{.session = 7, .pid = 71, .mps = NCCLSVC_MPS_UNKNOWN},
		{.session = 8, .pid = 80, .mps = NCCLSVC_MPS_OTHER},
	};
	struct snapshot s = snapshot();
	struct text out = TEXT_INIT(-1);
	struct ctl_args args = command(CTL_STATUS, false);
	struct view v = {.args = &args, .s = &s, .out = &out};
	s.daemon = *daemon;
	s.sessions = (ncclsvc_session_info *)trainers;
	s.nsessions = nsessions;
	view_mps_line(&v);
	char *text = text_steal(&out);
	assert_string_equal(text, line);
	free(text);
}

static void test_status_mps(void **state)
{
	ncclsvc_daemon_info d = {.mps = NCCLSVC_MPS_OWN,
				 .mps_pid = 123,
				 .mps_starts = 1,
				 .mps_age_ns = UINT64_C(3) * 3600 * 1000000000,
				 .mps_text = "/run/m"};
	(void)state;
	mps_says(&d, 0,
		 "its own: control daemon 123, for 3h00m, started once; 0 workers lost with it; "
		 "trainers: 0 with it\n");
	d.mps_losses = 1;
	d.mps_starts = 2;
	mps_says(&d, 8,
		 "its own: control daemon 123, for 3h00m, started 2 times; 1 worker lost with it; "
		 "trainers: 2 with it, 1 without (pid 77), 1 with another (pid 80)\n");
	d.mps_starts = 0;
	mps_says(&d, 1,
		 "its own: control daemon 123, for 3h00m, taken over from an earlier daemon; 1 "
		 "worker lost with it; trainers: 0 with it, 1 without (pid 77)\n");
	d.mps = NCCLSVC_MPS_FOUND;
	d.mps_losses = 0;
	mps_says(&d, 0, "that in /run/m, for 3h00m; 0 workers lost with it; trainers: 0 with it\n");
	d.mps = NCCLSVC_MPS_NOBODY;
	strcpy(d.mps_text, "not \033 installed");
	mps_says(&d, 1, "none: not ? installed; trainers: 0 with it, 1 without (pid 77)\n");
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Five times the tasks may take five times as long. This catches quadratic time, and output that
 * accumulates in memory. */
static double print_many(ncclsvc_task_info *list, size_t n, bool json)
{
	struct snapshot s = snapshot();
	struct ctl_args args = command(CTL_TASKS, json);
	struct text out = TEXT_INIT(open("/dev/null", O_WRONLY | O_CLOEXEC));
	struct view v = {.args = &args, .s = &s, .out = &out, .time = "t"};
	double start = cpu_seconds();

	assert_true(out.fd >= 0);
	s.tasks = list;
	s.ntasks = n;
	view_tasks(&v);
	text_flush(&out, true);
	double used = cpu_seconds() - start;
	assert_int_equal(out.error, 0);
	assert_true(out.size < 1 << 20);
	close(out.fd);
	text_free(&out);
	return used;
}

static void test_many_tasks(void **state)
{
	ncclsvc_task_info *list = malloc(MANY * sizeof(*list));

	(void)state;
	assert_non_null(list);
	for (size_t i = 0; i < MANY; i++) {
		list[i] = tasks[0];
		list[i].task = MANY - i;
		list[i].comm = 5 + i % 7;
		list[i].seq = i;
	}
	for (int json = 0; json < 2; json++) {
		double small = print_many(list, MANY / 5, json), all = print_many(list, MANY, json);

		print_message("%d tasks as %s: %.0f ms\n", MANY, json ? "JSON" : "a table",
			      all * 1e3);
		assert_true(all < 15 * small + 0.05);
	}
	free(list);
}

static void test_write_error(void **state)
{
	struct text out = TEXT_INIT(open("/dev/full", O_WRONLY | O_CLOEXEC));

	(void)state;
	assert_true(out.fd >= 0);
	text_add(&out, "x");
	text_flush(&out, true);
	assert_int_equal(out.error, ENOSPC);
	close(out.fd);
	text_free(&out);
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_tasks_json),    cmocka_unit_test(test_tasks_table),
		cmocka_unit_test(test_tasks_filters), cmocka_unit_test(test_sessions),
		cmocka_unit_test(test_jobs),	      cmocka_unit_test(test_comms),
		cmocka_unit_test(test_memory),	      cmocka_unit_test(test_halted_worker),
		cmocka_unit_test(test_status),	      cmocka_unit_test(test_no_straggler),
		cmocka_unit_test(test_status_mps),    cmocka_unit_test(test_devices),
		cmocka_unit_test(test_many_tasks),    cmocka_unit_test(test_write_error),
		cmocka_unit_test(test_lateness),      cmocka_unit_test(test_failures_of_nodes),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}
