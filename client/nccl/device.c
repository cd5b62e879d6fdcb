/* SPDX-License-Identifier: Apache-2.0
 * The device API, by which the user's kernels access other GPUs' memory. The communicators are in
 * the daemon's processes, so a kernel of this process has nothing to access. */
#include "handle.h"

static ncclResult_t refuse(const char *function)
{
	return fail(ncclInvalidUsage,
		    "%s: NCCL's device API needs communicators inside the process, and the "
		    "service's are in the daemon: use NCCL's own library for it",
		    function);
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *device_comm)
{
	(void)requirements;
	(void)device_comm;
	ncclResult_t r = handle_check(comm, "ncclDevCommCreate");
	return r ? r : refuse("ncclDevCommCreate");
}
NCCL_ALIAS(ncclDevCommCreate);

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *device_comm)
{
	(void)device_comm;
	ncclResult_t r = handle_check(comm, "ncclDevCommDestroy");
	return r ? r : refuse("ncclDevCommDestroy");
}
NCCL_ALIAS(ncclDevCommDestroy);

/* The team of all ranks needs no device support. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
	ncclTeam_t team = {0};
	if (!ncclCommCount(comm, &team.nRanks) && !ncclCommUserRank(comm, &team.rank))
		team.stride = 1;
	return team;
}
NCCL_ALIAS(ncclTeamWorld);

/* The teams that do need it have no members. */
ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
	(void)comm;
	refuse("ncclTeamLsa");
	return (ncclTeam_t){0};
}
NCCL_ALIAS(ncclTeamLsa);

ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
	(void)comm;
	refuse("ncclTeamRail");
	return (ncclTeam_t){0};
}
NCCL_ALIAS(ncclTeamRail);

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
	const ncclTeam_t world = ncclTeamWorld(comm);
	return world.rank + (rank - team.rank) * team.stride;
}
NCCL_ALIAS(ncclTeamRankToWorld);

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
	(void)comm;
	(void)team;
	(void)rank;
	refuse("ncclTeamRankToLsa");
	return -1;
}
NCCL_ALIAS(ncclTeamRankToLsa);

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int n, void *handle,
					     void *requirements)
{
	(void)team;
	(void)n;
	(void)handle;
	(void)requirements;
	return refuse("ncclLsaBarrierCreateRequirement");
}
NCCL_ALIAS(ncclLsaBarrierCreateRequirement);

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int n, void *handle,
					     void *requirements)
{
	(void)comm;
	(void)team;
	(void)n;
	(void)handle;
	(void)requirements;
	return refuse("ncclGinBarrierCreateRequirement");
}
NCCL_ALIAS(ncclGinBarrierCreateRequirement);

int ncclLLA2ACalcSlots(int elements, int element_bytes)
{
	(void)elements;
	(void)element_bytes;
	refuse("ncclLLA2ACalcSlots");
	return 0;
}
NCCL_ALIAS(ncclLLA2ACalcSlots);

ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirements)
{
	(void)blocks;
	(void)slots;
	(void)handle;
	(void)requirements;
	return refuse("ncclLLA2ACreateRequirement");
}
NCCL_ALIAS(ncclLLA2ACreateRequirement);

ncclTeam_t ncclTeamCft(ncclComm_t comm, int mode)
{
	(void)comm;
	(void)mode;
	refuse("ncclTeamCft");
	return (ncclTeam_t){0};
}
NCCL_ALIAS(ncclTeamCft);

ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm)
{
	(void)comm;
	refuse("ncclTeamCftMultimem");
	return (ncclTeam_t){0};
}
NCCL_ALIAS(ncclTeamCftMultimem);

ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int n, void *handle,
					     void *requirements)
{
	(void)team;
	(void)n;
	(void)handle;
	(void)requirements;
	return refuse("ncclCftBarrierCreateRequirement");
}
NCCL_ALIAS(ncclCftBarrierCreateRequirement);

ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int size_log2, void *handle,
					    void *requirements)
{
	(void)blocks;
	(void)size_log2;
	(void)handle;
	(void)requirements;
	return refuse("ncclGinOutboxCreateRequirement");
}
NCCL_ALIAS(ncclGinOutboxCreateRequirement);

ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int blocks, int size_log2,
					      void *handle, void *requirements)
{
	(void)peers;
	(void)blocks;
	(void)size_log2;
	(void)handle;
	(void)requirements;
	return refuse("ncclGinInboxA2ACreateRequirement");
}
NCCL_ALIAS(ncclGinInboxA2ACreateRequirement);

/* ---- Addresses of windows: in this process, windows are mapped only at their own address ---- */

static ncclResult_t no_pointer(const char *function, void **p)
{
	if (p)
		*p = NULL;
	return refuse(function);
}

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void **p)
{
	(void)window;
	(void)offset;
	(void)rank;
	return no_pointer("ncclGetLsaDevicePointer", p);
}
NCCL_ALIAS(ncclGetLsaDevicePointer);

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **p)
{
	(void)window;
	(void)offset;
	(void)peer;
	return no_pointer("ncclGetPeerDevicePointer", p);
}
NCCL_ALIAS(ncclGetPeerDevicePointer);

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **p)
{
	(void)window;
	(void)offset;
	return no_pointer("ncclGetLsaMultimemDevicePointer", p);
}
NCCL_ALIAS(ncclGetLsaMultimemDevicePointer);

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
					  ncclMultimemHandle_t multimem, void **p)
{
	(void)window;
	(void)offset;
	(void)multimem;
	return no_pointer("ncclGetMultimemDevicePointer", p);
}
NCCL_ALIAS(ncclGetMultimemDevicePointer);

ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, uint32_t *id,
				     size_t *at)
{
	(void)window;
	(void)offset;
	(void)peer;
	(void)id;
	(void)at;
	return refuse("ncclGetPeerDeviceLeInfo");
}
NCCL_ALIAS(ncclGetPeerDeviceLeInfo);

ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, ncclTeam_t team,
				    uint32_t *id, size_t *at)
{
	(void)window;
	(void)offset;
	(void)peer;
	(void)team;
	(void)id;
	(void)at;
	return refuse("ncclGetCftDeviceLeInfo");
}
NCCL_ALIAS(ncclGetCftDeviceLeInfo);

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t *id,
					 size_t *at)
{
	(void)window;
	(void)offset;
	(void)id;
	(void)at;
	return refuse("ncclGetMultimemDeviceLeInfo");
}
NCCL_ALIAS(ncclGetMultimemDeviceLeInfo);
