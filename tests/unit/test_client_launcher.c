/* SPDX-License-Identifier: Apache-2.0
 * Ranks from the environment of launchers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/launcher.h"
#include "ncclsvc.h"

#define WORLD 4

struct row {
	const char *environment; /* words */
	int rank;		 /* -1: refused */
	const char *why;
};

static const struct row rows[] = {
	{"RANK=3 WORLD_SIZE=4", 3, NULL},
	{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", 1, NULL},
	{"PMI_RANK=0 PMI_SIZE=4", 0, NULL},
	{"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", 2, NULL},
	{"PMIX_RANK=2", 2, NULL},
	/* torchrun under srun, mpirun in a batch script, mpirun by PMIx */
	{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 RANK=3 WORLD_SIZE=4", 3, NULL},
	{"SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4", 2, NULL},
	{"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=2", 2, NULL},
	{"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 RANK=2 WORLD_SIZE=4", 2, NULL},
	{"", -1, "no launcher"},
	{"RANK=1", -1, "no launcher"},
	{"RANK=1 WORLD_SIZE=8", -1, "WORLD_SIZE is 8, but the world has 4 ranks"},
	{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1", -1,
	 "OMPI_COMM_WORLD_SIZE is 2"},
	{"RANK=1 WORLD_SIZE=4 PMI_RANK=2 PMI_SIZE=4", -1, "RANK is 1, but PMI_RANK is 2"},
	{"RANK=4 WORLD_SIZE=4", -1, "RANK is '4': it must be a number from 0 to 3"},
	{"RANK=-1 WORLD_SIZE=4", -1, "RANK is '-1'"},
	{"RANK=1x WORLD_SIZE=4", -1, "RANK is '1x'"},
	{"RANK= WORLD_SIZE=4", -1, "no launcher gave"},
	{"RANK= WORLD_SIZE=4 PMI_RANK=2 PMI_SIZE=4", 2, NULL},
	{"RANK=1 WORLD_SIZE=99999999999999999999", -1, "WORLD_SIZE is '99999999999999999999'"},
	{"PMIX_RANK=9", -1, "PMIX_RANK is '9'"},
};

static void set_environment(const char *environment)
{
	char words[256], *rest = NULL;
	clearenv();
	assert_true(strlen(environment) < sizeof(words));
	strcpy(words, environment);
	for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
		char *value = strchr(w, '=');
		*value = '\0';
		setenv(w, value + 1, 1);
	}
}

static void check_refused(ncclsvc_result r, const char *why)
{
	assert_int_equal(r, NCCLSVC_INVALID_ARGUMENT);
	if (!strstr(ncclsvc_last_error(), why))
		fail_msg("'%s' does not say '%s'", ncclsvc_last_error(), why);
}

static void ranks(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int rank = -1;
		set_environment(rows[i].environment);
		const ncclsvc_result r = launcher_rank(WORLD, &rank);
		if (rows[i].rank >= 0) {
			assert_int_equal(r, NCCLSVC_OK);
			assert_int_equal(rank, rows[i].rank);
			continue;
		}
		check_refused(r, rows[i].why);
	}
}

/* ---- Sizes, nodes and jobs ---- */

#define TORCHRUN "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "
#define OMPI	 "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3 "
#define SLURM	 "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 "

static const struct number {
	const char *environment;
	int number; /* -1: refused */
	const char *why;
} sizes[] =
	{
		{TORCHRUN, 4, NULL},
		{OMPI, 4, NULL},
		{SLURM, 4, NULL},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 " TORCHRUN, 4, NULL},
		{"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 " TORCHRUN, 4, NULL},
		{"", -1, "set world in the options"},
		{"PMIX_RANK=1", -1, "set world in the options"},
		{"WORLD_SIZE=4", -1, "set world in the options"},
		{"RANK=0 WORLD_SIZE=0", -1, "WORLD_SIZE is 0"},
		{"RANK=0 WORLD_SIZE=-4", -1, "WORLD_SIZE is '-4'"},
		{"RANK=0 WORLD_SIZE=65537", -1, "WORLD_SIZE is '65537'"},
},
  locals[] = {
	  /* for the world of 4, rank 3 */
	  {"", 0, NULL},
	  {TORCHRUN, 2, NULL},
	  {OMPI, 0, NULL},
	  {OMPI "OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3", 4, NULL},
	  {SLURM "SLURM_NTASKS_PER_NODE=2", 2, NULL},
	  {SLURM "SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NTASKS_PER_NODE=4", 2, NULL},
	  {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=3,1", 3,
	   NULL},
	  /* srun has started one torchrun on each node, so its tasks are not the ranks. */
	  {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 "
	   "SLURM_STEP_TASKS_PER_NODE=1(x2) " TORCHRUN,
	   2, NULL},
	  /* --distribution=cyclic */
	  {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x2)",
	   -1, "SLURM_LOCALID is 0, but with 2 ranks per node"},
	  {SLURM "SLURM_STEP_TASKS_PER_NODE=x", -1, "SLURM_STEP_TASKS_PER_NODE is 'x'"},
	  {SLURM "SLURM_STEP_TASKS_PER_NODE=0(x2)", -1, "SLURM_STEP_TASKS_PER_NODE is '0(x2)'"},
	  {SLURM "SLURM_STEP_TASKS_PER_NODE=2y", -1, "SLURM_STEP_TASKS_PER_NODE is '2y'"},
};

static void check_number(const struct number *n, ncclsvc_result r, int number)
{
	if (n->number < 0) {
		check_refused(r, n->why);
		return;
	}
	assert_int_equal(r, NCCLSVC_OK);
	assert_int_equal(number, n->number);
}

static void sizes_and_nodes(void **state)
{
	int number;
	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		set_environment(sizes[i].environment);
		const ncclsvc_result r = launcher_size(&number);
		check_number(&sizes[i], r, number);
	}
	for (size_t i = 0; i < sizeof(locals) / sizeof(locals[0]); i++) {
		set_environment(locals[i].environment);
		const ncclsvc_result r = launcher_local(WORLD, 3, &number);
		check_number(&locals[i], r, number);
	}
	/* A rank that the program chooses itself does not have to match the launcher's placement.
	 */
	set_environment(TORCHRUN "LOCAL_RANK=0");
	assert_int_equal(launcher_local(WORLD, -1, &number), NCCLSVC_OK);
	assert_int_equal(number, 2);
}

static const struct job_row {
	const char *environment, *name; /* name NULL: there is none */
} job_rows[] = {
	{TORCHRUN "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500",
	 "MASTER_PORT=29500 MASTER_ADDR=10.0.0.1 "},
	{TORCHRUN "MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r7",
	 "MASTER_PORT=29500 MASTER_ADDR=n1 TORCHELASTIC_RUN_ID=r7 "},
	{OMPI "PMIX_NAMESPACE=42", "PMIX_NAMESPACE=42 "},
	{OMPI "OMPI_MCA_ess_base_jobid=43", "OMPI_MCA_ess_base_jobid=43 "},
	{"PMIX_RANK=3 PMIX_NAMESPACE=44", "PMIX_NAMESPACE=44 "},
	{SLURM "SLURM_JOB_ID=7 SLURM_STEP_ID=1", "SLURM_JOB_ID=7 SLURM_STEP_ID=1 "},
	{"PMI_RANK=3 PMI_SIZE=4 " SLURM "SLURM_JOB_ID=7 SLURM_STEP_ID=1",
	 "SLURM_JOB_ID=7 SLURM_STEP_ID=1 "},
	/* A job of another size is not the world's. */
	{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=1 PMIX_NAMESPACE=42", NULL},
	{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=7 SLURM_STEP_ID=1", NULL},
	{TORCHRUN "MASTER_ADDR=n1", NULL},
	{TORCHRUN "MASTER_ADDR=n1 MASTER_PORT=", NULL},
	{SLURM "SLURM_JOB_ID=7", NULL},
	{"", NULL},
};

static void jobs(void **state)
{
	char name[LAUNCHER_JOB], host[256] = "", with_host[LAUNCHER_JOB];
	(void)state;
	for (size_t i = 0; i < sizeof(job_rows) / sizeof(job_rows[0]); i++) {
		set_environment(job_rows[i].environment);
		const ncclsvc_result r = launcher_job(WORLD, name);
		if (!job_rows[i].name) {
			check_refused(r, "set job in the options");
			continue;
		}
		assert_int_equal(r, NCCLSVC_OK);
		assert_string_equal(name, job_rows[i].name);
	}
	/* Each node can have its own job at this address. */
	set_environment(TORCHRUN "MASTER_ADDR=localhost MASTER_PORT=29500");
	assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
	snprintf(with_host, sizeof(with_host), "MASTER_PORT=29500 MASTER_ADDR=localhost host=%s ",
		 host);
	assert_int_equal(launcher_job(WORLD, name), NCCLSVC_OK);
	assert_string_equal(name, with_host);
	char run[LAUNCHER_JOB + 1] = "";
	memset(run, 'x', LAUNCHER_JOB);
	setenv("TORCHELASTIC_RUN_ID", run, 1);
	check_refused(launcher_job(WORLD, name), "TORCHELASTIC_RUN_ID is too long");
}

/* ---- The first node ---- */

static const struct node {
	const char *environment, *host; /* NULL: refused */
} nodes[] = {
	{"", ""},
	{OMPI, ""},
	{TORCHRUN "MASTER_ADDR=n1.example", "n1.example"},
	{TORCHRUN "MASTER_ADDR=fd00::7", "fd00::7"},
	{SLURM "SLURM_STEP_NODELIST=n1", "n1"},
	{SLURM "SLURM_STEP_NODELIST=n1,n2", "n1"},
	{SLURM "SLURM_STEP_NODELIST=n[7,9]", "n7"},
	{SLURM "SLURM_STEP_NODELIST=n[001-003,7],m1", "n001"},
	{SLURM "SLURM_STEP_NODELIST=r[1-2]n[03-04]-ib,m1", "r1n03-ib"},
	/* torchrun under srun */
	{"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1-2] " TORCHRUN
	 "MASTER_ADDR=n1",
	 "n1"},
	{SLURM "SLURM_STEP_NODELIST=n[1-2", NULL},
	{SLURM "SLURM_STEP_NODELIST=,n2", NULL},
};

static void first_nodes(void **state)
{
	char host[LAUNCHER_HOST], list[LAUNCHER_HOST + 1] = "";
	(void)state;
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		set_environment(nodes[i].environment);
		const ncclsvc_result r = launcher_first_node(WORLD, host);
		if (!nodes[i].host) {
			check_refused(r, "it must begin with a host's name");
			continue;
		}
		assert_int_equal(r, NCCLSVC_OK);
		assert_string_equal(host, nodes[i].host);
	}
	memset(list, 'n', LAUNCHER_HOST);
	setenv("SLURM_STEP_NODELIST", list, 1);
	check_refused(launcher_first_node(WORLD, host), "it must begin with a host's name");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks),
		cmocka_unit_test(sizes_and_nodes),
		cmocka_unit_test(jobs),
		cmocka_unit_test(first_nodes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
