/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoints.h"

#include <unistd.h>

#include "tests.h"

typedef CUresult checkpoint_call(int pid, void *args);

static CUresult call(const char *name)
{
	uint64_t none[16] = {0}; /* at least as large as any call's arguments */
	checkpoint_call *f = (checkpoint_call *)gpu_function(name);
	stage("%s", name);
	if (!f)
		skip_test("this driver has no %s", name);
	return f(getpid(), none);
}

void checkpoints_needed(void)
{
	CUresult e = call("cuCheckpointProcessLock");
	if (e == CUDA_ERROR_NOT_SUPPORTED)
		skip_test("the driver cannot checkpoint this process (unsupported, or an MPS "
			  "client)");
	CHECK_CU(e);
	CHECK_CU(call("cuCheckpointProcessUnlock"));
}

void checkpoint_leave(void)
{
	CHECK_CU(call("cuCheckpointProcessLock"));
	CHECK_CU(call("cuCheckpointProcessCheckpoint"));
}

void checkpoint_return(void)
{
	CHECK_CU(call("cuCheckpointProcessRestore"));
	CHECK_CU(call("cuCheckpointProcessUnlock"));
}
