/* SPDX-License-Identifier: Apache-2.0
 * The name of a process's job: from its environment, and from its control group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/identity.h"
#include "proto/names.h"
#include "proto/process/cgroup.h"

#define MPI	 "OMPI_MCA_ess_base_jobid=9", "PMIX_NAMESPACE=mpi7"
#define POD	 MPI, "KUBERNETES_SERVICE_HOST=10.0.0.1", "HOSTNAME=train-0"
#define TORCHRUN POD, "TORCHELASTIC_RUN_ID=r7"
#define SLURM	 TORCHRUN, "SLURM_JOB_ID=1234", "SLURM_STEP_ID=0"

/* Each row knows more than the one before. */
static const struct {
	const char *job;
	const char *option;
	const char *environment[12];
} rows[] = {
	{"mpi 9", NULL, {"OMPI_MCA_ess_base_jobid=9"}},
	{"mpi mpi7", NULL, {MPI}},
	{"pod train-0", NULL, {POD}},
	{"torchrun r7", NULL, {TORCHRUN}},
	{"slurm 1234.0", NULL, {SLURM}},
	{"mine", NULL, {SLURM, "NCCLSVC_JOB=mine"}},
	{"option", "option", {SLURM, "NCCLSVC_JOB=mine"}},
	{"mine", "", {SLURM, "NCCLSVC_JOB=mine"}},
	/* Missing, empty or meaningless variables. */
	{"slurm 5", NULL, {"SLURM_JOB_ID=5"}},
	{"slurm 1234.0", NULL, {SLURM, "NCCLSVC_JOB="}},
	{"mpi mpi7", NULL, {MPI, "TORCHELASTIC_RUN_ID=none", "SLURM_STEP_ID=3", "HOSTNAME=h"}},
	/* Unprintable characters. */
	{"a?b??c", NULL, {"NCCLSVC_JOB=a\nb\303\244c"}},
	{"123456789012345678901234567890123456789012345678901234567890123",
	 "1234567890123456789012345678901234567890123456789012345678901234567890",
	 {NULL}},
};

static void the_first_that_knows_says(void **state)
{
	char job[NCCLSVC_JOB_BYTES], group[NCCLSVC_JOB_BYTES];
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		clearenv();
		for (const char *const *v = rows[i].environment; *v; v++)
			putenv((char *)*v);
		memset(job, 'x', sizeof(job));
		/* The machine that runs this test may itself be a pod. */
		svc_cgroup_of(getpid(), group);
		identity_of(rows[i].option, job);
		if (!strncmp(rows[i].job, "mpi", 3) && !strncmp(group, "pod ", 4))
			assert_string_equal(job, group);
		else
			assert_string_equal(job, rows[i].job);
		assert_true(svc_label_ok(job, sizeof(job)));
	}
	clearenv();
	assert_string_equal(identity_of(NULL, job), group);
}

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
	const char *text, *name;
} groups[] = {
	{"0::/system.slice/train.service\n", "train.service"},
	{"0::/user.slice/user-7.slice/user@7.service/app.slice/run-u9.scope\n", "run-u9.scope"},
	{"0::/system.slice/docker-" ID ".scope\n", "docker-0123456789ab"},
	{"0::/docker/" ID "\n", "0123456789ab"},
	{"0::/kubepods.slice/kubepods-burstable.slice/"
	 "kubepods-burstable-pod12345678_9abc_def0_1234_56789abcdef0.slice/"
	 "cri-containerd-" ID ".scope\n",
	 "pod 12345678-9abc-def0-1234-56789abcdef0"},
	{"0::/kubepods/besteffort/pod12345678-9abc-def0-1234-56789abcdef0/" ID "\n",
	 "pod 12345678-9abc-def0-1234-56789abcdef0"},
	{"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_3\n", "job_12/step_0"},
	{"12:cpuset:/slurm/uid_7/job_12/step_batch\n1:name=systemd:/system.slice/x.service\n0::/\n",
	 "x.service"},
	{"12:cpuset:/slurm/uid_7/job_12/step_batch/task_0\n", "job_12/step_batch"},
	{"4:memory:/a\n0::/b:c\n", "b:c"},
	{"0::/../../lxc/../.\n", "lxc"},
	{"0::/user.slice/user\n", "user.slice"},
	{"0::/podman/x\n", "x"},
	/* Empty and malformed input. */
	{"", ""},
	{"0::/\n", ""},
	{"0:\n\n::\n:", ""},
	{"x", ""},
	{"0::/a\033[2Jb/", "a?[2Jb"},
	{"0::/kubepods/pod", "pod"},
	{"0::/unit 1234567890123456789 unit 1234567890123456789 unit 1234567890123456789",
	 "unit 1234567890123456789 unit 1234567890123456789 unit 12345678"},
};

static void a_control_group_has_a_name(void **state)
{
	char name[NCCLSVC_JOB_BYTES], text[4096];
	(void)state;
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		assert_string_equal(svc_cgroup_name(groups[i].text, name), groups[i].name);
		assert_true(svc_label_ok(name, sizeof(name)));
	}
	memset(text, '/', sizeof(text));
	memcpy(text, "0::", 3);
	text[sizeof(text) - 1] = '\0';
	assert_string_equal(svc_cgroup_name(text, name), "");
	memset(text + 3, 'x', sizeof(text) - 4);
	assert_int_equal(strlen(svc_cgroup_name(text, name)), sizeof(name) - 1);
	assert_string_equal(svc_cgroup_of(0, name), "");
	assert_string_equal(svc_cgroup_of(INT32_MAX, name), "");
}

static void admission_has_three_names(void **state)
{
	ncclsvc_admit admit;
	(void)state;
	clearenv();
	assert_true(admit_of(NCCLSVC_ADMIT_DEFAULT, &admit));
	assert_int_equal(admit, NCCLSVC_ADMIT_TENANT);
	putenv("NCCLSVC_ADMIT=any");
	assert_true(admit_of(NCCLSVC_ADMIT_DEFAULT, &admit));
	assert_int_equal(admit, NCCLSVC_ADMIT_ANY);
	assert_true(admit_of(NCCLSVC_ADMIT_USER, &admit));
	assert_int_equal(admit, NCCLSVC_ADMIT_USER);
	assert_false(admit_of((ncclsvc_admit)4, &admit));
	putenv("NCCLSVC_ADMIT=user");
	assert_true(admit_of(NCCLSVC_ADMIT_DEFAULT, &admit));
	assert_int_equal(admit, NCCLSVC_ADMIT_USER);
	putenv("NCCLSVC_ADMIT=");
	assert_true(admit_of(NCCLSVC_ADMIT_DEFAULT, &admit));
	assert_int_equal(admit, NCCLSVC_ADMIT_TENANT);
	putenv("NCCLSVC_ADMIT=all");
	assert_false(admit_of(NCCLSVC_ADMIT_DEFAULT, &admit));
	clearenv();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_that_knows_says),
		cmocka_unit_test(a_control_group_has_a_name),
		cmocka_unit_test(admission_has_three_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
