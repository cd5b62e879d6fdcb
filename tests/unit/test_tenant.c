/* SPDX-License-Identifier: Apache-2.0
 * The unit that a process's control group belongs to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "account/tenant.h"
#include "proto/names.h"

#define ID   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define UID  "12345678-9abc-def0-1234-56789abcdef0"
#define UID_ "12345678_9abc_def0_1234_56789abcdef0"
#define KUBE "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_ ".slice"

static const struct {
	const char *text, *unit, *name;
} rows[] = {
	/* Slurm: version 2, several slurmds on a node, version 1. */
	{"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_3\n",
	 "/system.slice/slurmstepd.scope/job_123", "job_123"},
	{"0::/system.slice/n1_slurmstepd.scope/job_123/step_batch/user\n",
	 "/system.slice/n1_slurmstepd.scope/job_123", "job_123"},
	{"12:cpuset:/slurm/uid_7/job_12/step_batch/task_0\n1:name=systemd:/system.slice/"
	 "slurmd.service\n0::/system.slice/slurmd.service\n",
	 "/slurm/uid_7/job_12", "job_12"},
	{"0::/system.slice/slurmstepd.scope/system\n", "/system.slice/slurmstepd.scope",
	 "slurmstepd.scope"},
	{"0::/batch/job_1/step_2\n", "/batch/job_1/step_2", "job_1/step_2"},
	/* Kubernetes: both drivers, all classes, kind, containerd's service, from a namespace. */
	{"0::" KUBE "/cri-containerd-" ID ".scope\n", KUBE, "pod " UID},
	{"0::/kubepods.slice/kubepods-pod" UID_ ".slice/crio-" ID ".scope\n",
	 "/kubepods.slice/kubepods-pod" UID_ ".slice", "pod " UID},
	{"0::/kubepods/besteffort/pod" UID "/" ID "\n", "/kubepods/besteffort/pod" UID, "pod " UID},
	{"0::/kubepods/pod" UID "/" ID "/inner\n", "/kubepods/pod" UID, "pod " UID},
	{"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" UID_ ".slice/x.scope\n",
	 "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" UID_ ".slice", "pod " UID},
	{"0::/system.slice/containerd.service/kubepods-burstable-pod" UID_
	 ".slice:cri-containerd:" ID "\n",
	 "/system.slice/containerd.service/kubepods-burstable-pod" UID_ ".slice", "pod " UID},
	{"0::/../../pod" UID "/" ID "\n", "/../../pod" UID "/" ID, "0123456789ab"},
	{"0::/../../kubepods/pod" UID "/" ID "\n", "/../../kubepods/pod" UID, "pod " UID},
	/* Containers. */
	{"0::/docker/" ID "\n", "/docker/" ID, "0123456789ab"},
	{"0::/docker/" ID "/train\n", "/docker/" ID, "0123456789ab"},
	{"0::/system.slice/docker-" ID ".scope/init.scope\n", "/system.slice/docker-" ID ".scope",
	 "docker-0123456789ab"},
	{"0::/machine.slice/libpod-" ID ".scope/container\n", "/machine.slice/libpod-" ID ".scope",
	 "libpod-0123456789ab"},
	{"0::/default/" ID "\n", "/default/" ID, "0123456789ab"},
	{"0::/lxc.payload.web/system.slice/a.service\n", "/lxc.payload.web", "lxc.payload.web"},
	{"0::/lxc/web/user.slice\n", "/lxc/web", "web"},
	{"13:memory:/docker/" ID "\n1:name=systemd:/docker/" ID "\n0::/\n", "/docker/" ID,
	 "0123456789ab"},
	/* Containers and pods that run in another one belong to it. */
	{"0::/docker/" ID "/kubepods/pod" UID "/a\n", "/docker/" ID, "0123456789ab"},
	/* Logins: also of what a user starts in them. */
	{"0::/user.slice/user-1000.slice/session-2.scope\n", "/user.slice/user-1000.slice",
	 "user-1000.slice"},
	{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u9.scope\n",
	 "/user.slice/user-1000.slice", "user-1000.slice"},
	{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" ID
	 ".scope/container\n",
	 "/user.slice/user-1000.slice", "user-1000.slice"},
	{"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" UID "\n",
	 "/user.slice/user-1000.slice", "user-1000.slice"},
	{"0::/user.slice/user-1000.slice/slurm/job_7\n", "/user.slice/user-1000.slice",
	 "user-1000.slice"},
	/* Services, and groups that they create. */
	{"0::/system.slice/train.service\n", "/system.slice/train.service", "train.service"},
	{"0::/system.slice/train.service/kubepods/pod" UID "\n", "/system.slice/train.service",
	 "train.service"},
	{"0::/system.slice/system-train.slice/train@3.service/a/b\n",
	 "/system.slice/system-train.slice/train@3.service", "train@3.service"},
	{"0::/system.slice/run-u7.scope/a\n", "/system.slice/run-u7.scope", "run-u7.scope"},
	{"0::/system.slice/docker.service\n", "/system.slice/docker.service", "docker.service"},
	/* Everything else as it is. */
	{"0::/a/b:c/d\n", "/a/b:c/d", "d"},
	{"4:memory:/a/b\n3:cpu:/a\n0::/\n", "/a/b", "b"},
	{"0::/user.slice\n", "/user.slice", "user.slice"},
	{"0::/a\033[2J/b\n", "/a\033[2J/b", "b"},
	{"0::/a/b\033[2J\n", "/a/b\033[2J", "b?[2J"},
	{"0::/../..\n", "/../..", ""},
	/* Nothing is known. */
	{"0::/\n", "", ""},
	{"", "", ""},
	{"::", "", ""},
	{"0:\n\n::\n:", "", ""},
	{"x", "", ""},
};

static void a_path_has_a_unit(void **state)
{
	struct tenant t;
	char name[NCCLSVC_JOB_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		memset(&t, 'x', sizeof(t));
		tenant_of_text(7, rows[i].text, &t);
		assert_int_equal(t.uid, 7);
		assert_string_equal(t.unit, rows[i].unit);
		for (size_t k = strlen(t.unit); k < sizeof(t.unit); k++)
			assert_int_equal(t.unit[k], 0);
		assert_string_equal(tenant_name(&t, name), rows[i].name);
		assert_true(svc_label_ok(name, sizeof(name)));
	}
}

static void a_long_path_is_cut(void **state)
{
	static char text[8192];
	struct tenant t;
	(void)state;
	memset(text, '/', sizeof(text) - 1);
	memcpy(text, "0::", 3);
	tenant_of_text(7, text, &t);
	assert_int_equal(strlen(t.unit), sizeof(t.unit) - 1);
	memset(text + 3, 'x', sizeof(text) - 4);
	tenant_of_text(7, text, &t);
	assert_int_equal(strlen(t.unit), sizeof(t.unit) - 1);
}

static void a_text_names_user_and_unit(void **state)
{
	struct tenant t;
	char text[TENANT_TEXT_BYTES];
	(void)state;
	tenant_of_text(1000, "0::/system.slice/slurmstepd.scope/job_12/step_0\n", &t);
	assert_string_equal(tenant_text(&t, text), "1000 (job_12)");
	tenant_of_text(1000, "0::/user.slice/user-1000.slice/session-2.scope\n", &t);
	assert_string_equal(tenant_text(&t, text), "1000");
	tenant_of_text(0, "0::/user.slice/user-1000.slice/session-2.scope\n", &t); /* sudo */
	assert_string_equal(tenant_text(&t, text), "0 (user-1000.slice)");
	tenant_of_text(UINT32_MAX, "", &t);
	assert_string_equal(tenant_text(&t, text), "4294967295");
}

static void a_peer_is_in_its_control_group(void **state)
{
	struct tenant peer, own;
	char cgroup[NCCLSVC_JOB_BYTES], text[8192];
	int pair[2];
	(void)state;
	FILE *f = fopen("/proc/self/cgroup", "re");
	assert_non_null(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	tenant_of_text(7, text, &own);
	own.confined = 0; /* the "daemon" is in the same container, if in any */
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	tenant_of_peer(pair[0], getpid(), 7, &peer, cgroup);
	assert_memory_equal(&peer, &own, sizeof(own));
	assert_int_equal(tenant_is_own(&peer), geteuid() == 7);
	tenant_of_peer(pair[0], getpid(), geteuid(), &peer, cgroup);
	assert_true(tenant_is_own(&peer));
	strcpy(peer.unit, "/another/job_12");
	assert_false(tenant_is_own(&peer));
	/* /proc shows no process with that pid, such as one outside this pid namespace. */
	tenant_of_peer(pair[0], 0, 7, &peer, cgroup);
	assert_string_equal(peer.unit, "");
	assert_string_equal(cgroup, "");
	assert_int_equal(peer.uid, 7);
	assert_false(tenant_is_own(&peer));
	assert_false(tenant_may(&peer, &own)); /* it may have left a pod by its end */
	assert_false(tenant_may(&peer, &(struct tenant){.uid = 7}));
	assert_true(tenant_may(&peer, &peer));
	close(pair[0]);
	close(pair[1]);
}

/* Pods and containers see only themselves; a user's other processes see all of the user's. */
static void pods_are_confined(void **state)
{
	static const char *const paths[] = {"/user.slice/user-7.slice/a", "/batch", "/docker/" ID,
					    "/docker/" ID "/in/it", "/kubepods/pod" UID "/a"};
	enum { N = sizeof(paths) / sizeof(paths[0]), CONFINED = 2 };
	struct tenant t[N], other;
	char text[512];
	(void)state;
	for (int i = 0; i < N; i++) {
		snprintf(text, sizeof(text), "0::%s\n", paths[i]);
		tenant_of_text(7, text, &t[i]);
		tenant_of_text(8, text, &other);
		assert_false(tenant_may(&t[i], &other));
	}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < N; k++)
			assert_int_equal(tenant_may(&t[i], &t[k]),
					 i < CONFINED || !strcmp(t[i].unit, t[k].unit));
	assert_string_equal(t[CONFINED].unit, t[CONFINED + 1].unit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_has_a_unit),
		cmocka_unit_test(pods_are_confined),
		cmocka_unit_test(a_long_path_is_cut),
		cmocka_unit_test(a_text_names_user_and_unit),
		cmocka_unit_test(a_peer_is_in_its_control_group),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
