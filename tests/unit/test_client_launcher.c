/* SPDX-License-Identifier: Apache-2.0
 * Ranks from the environment of launchers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/launcher.h"
#include "ncclsvc.h"

#define WORLD 4

struct row {
	const char *environment; /* words */
	int rank;		 /* -1: it is refused */
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
	{"RANK=1 WORLD_SIZE=8", -1, "WORLD_SIZE is 8, but the daemon's world has 4 ranks"},
	{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1", -1,
	 "OMPI_COMM_WORLD_SIZE is 2"},
	{"RANK=1 WORLD_SIZE=4 PMI_RANK=2 PMI_SIZE=4", -1, "RANK is 1, and PMI_RANK is 2"},
	{"RANK=4 WORLD_SIZE=4", -1, "RANK is '4': it must be a number from 0 to 3"},
	{"RANK=-1 WORLD_SIZE=4", -1, "RANK is '-1'"},
	{"RANK=1x WORLD_SIZE=4", -1, "RANK is '1x'"},
	{"RANK= WORLD_SIZE=4", -1, "RANK is ''"},
	{"RANK=1 WORLD_SIZE=99999999999999999999", -1, "WORLD_SIZE is '99999999999999999999'"},
	{"PMIX_RANK=9", -1, "PMIX_RANK is '9'"},
};

static void ranks(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char words[128], *rest = NULL;
		int rank = -1;
		clearenv();
		strcpy(words, rows[i].environment);
		for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
			char *value = strchr(w, '=');
			*value = '\0';
			setenv(w, value + 1, 1);
		}
		const ncclsvc_result r = launcher_rank(WORLD, &rank);
		if (rows[i].rank >= 0) {
			assert_int_equal(r, NCCLSVC_OK);
			assert_int_equal(rank, rows[i].rank);
			continue;
		}
		assert_int_equal(r, NCCLSVC_INVALID_ARGUMENT);
		if (!strstr(ncclsvc_last_error(), rows[i].why))
			fail_msg("'%s' does not say '%s'", ncclsvc_last_error(), rows[i].why);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(ranks)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
