/* SPDX-License-Identifier: Apache-2.0
 * The drop-in: features of NCCL since 2.28. Communicators that grow or are suspended, structs of
 * older and newer releases, and refusals. */
#include <stddef.h>
#include <string.h>

#include "dropin_calls.h"

/* ---- Growing ---- */

/* Broadcasts rank 0's id to all ranks of `all`. */
static void share_id(ncclComm_t all, ncclUniqueId *id)
{
	CUdeviceptr p = dropin_words(0);
	gpu_put(p, id, sizeof(*id));
	CHECK_NC(nc.ncclBroadcast(at(p), at(p), sizeof(*id), NCCLSVC_INT8, 0, all, NULL));
	CHECK(gpu_stream_ends(NULL, WAIT_MS));
	gpu_get(id, p, sizeof(*id));
	CHECK_CU(cu.cuMemFree(p));
}

static void refused_growths(ncclComm_t parent, int n)
{
	ncclComm_t grown = (ncclComm_t)-1;
	ncclUniqueId id = {{1}};
	CHECK_NC_IS(nc.ncclCommGetUniqueId(parent, NULL), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommGetUniqueId(NULL, &id), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommGrow(parent, n, NULL, -1, NULL, NULL), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommGrow(parent, n - 1, NULL, -1, &grown, NULL), ncclInvalidArgument);
	CHECK(!grown);
	CHECK_SAYS(NULL, "must be more than");
	CHECK_NC_IS(nc.ncclCommGrow(parent, n, NULL, 0, &grown, NULL), ncclInvalidArgument);
	CHECK_SAYS(NULL, "-1");
	CHECK_NC_IS(nc.ncclCommGrow(parent, n, &id, -1, &grown, NULL), ncclInvalidArgument);
	CHECK_SAYS(NULL, "ncclCommGetUniqueId");
	CHECK_NC_IS(nc.ncclCommGrow(NULL, n, NULL, 0, &grown, NULL), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommGrow(NULL, n, &id, n, &grown, NULL), ncclInvalidArgument);
}

/* parent: NULL on the new rank. id: needed on the new rank, and optional on the first one. */
static void grow(const struct client *c, ncclComm_t parent, const ncclUniqueId *id,
		 ncclConfig_t *config)
{
	ncclComm_t grown;
	int n, rank;
	ncclResult_t r =
		nc.ncclCommGrow(parent, c->nranks, id, parent ? -1 : c->rank, &grown, config);
	CHECK(r == (config ? ncclInProgress : ncclSuccess));
	CHECK_EQ(dropin_finishes(grown), ncclSuccess);
	CHECK_NC(nc.ncclCommCount(grown, &n));
	CHECK_EQ(n, c->nranks);
	CHECK_NC(nc.ncclCommUserRank(grown, &rank));
	CHECK_EQ(rank, c->rank);
	dropin_check_usable(grown);
	if (parent)
		dropin_check_usable(parent);
	CHECK_NC(nc.ncclCommDestroy(grown));
}

static void grow_rank(struct client *c)
{
	ncclComm_t all = dropin_join(c), parent, none;
	ncclConfig_t config = dropin_config();
	ncclUniqueId ids[2], again;
	const bool comes = c->rank == c->nranks - 1;
	config.blocking = 0;
	CHECK_NC(nc.ncclCommSplit(all, comes ? NCCL_SPLIT_NOCOLOR : 0, 0, &parent, NULL));
	if (parent)
		refused_growths(parent, c->nranks);
	for (int i = 0; i < 2; i++) {
		stage("growth %d", i);
		memset(&ids[i], 0, sizeof(ids[i]));
		if (c->rank == 0) {
			CHECK_NC(nc.ncclCommGetUniqueId(parent, &ids[i]));
			CHECK_NC(nc.ncclCommGetUniqueId(parent, &again));
			CHECK(!memcmp(&again, &ids[i], sizeof(again)));
		}
		share_id(all, &ids[i]);
		const bool gives = comes || (c->rank == 0 && i == 0);
		grow(c, parent, gives ? &ids[i] : NULL, i ? &config : NULL);
	}
	CHECK(memcmp(&ids[0], &ids[1], sizeof(ids[0])));
	if (parent) {
		stage("an id that was already used");
		CHECK_NC_IS(nc.ncclCommGrow(parent, c->nranks, &ids[0], -1, &none, NULL),
			    ncclInvalidArgument);
		CHECK_NC(nc.ncclCommDestroy(parent));
	}
	dropin_check_usable(all);
	CHECK_NC(nc.ncclCommDestroy(all));
}

static void test_grow(void)
{
	ranks_run(ranks_count(), grow_rank, NULL);
}

/* ---- Suspending ---- */

static uint64_t statistic(ncclComm_t comm, int which)
{
	uint64_t value = 99;
	CHECK_NC(nc.ncclCommMemStats(comm, which, &value));
	return value;
}

static void suspend_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c), other;
	ncclResult_t error;
	uint64_t value;
	CUdeviceptr p = dropin_words(1);
	stage("invalid arguments");
	CHECK_NC_IS(nc.ncclCommSuspend(comm, 6), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommSuspend(NULL, NCCL_SUSPEND_MEM), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommMemStats(comm, 4, &value), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommMemStats(comm, 0, NULL), ncclInvalidArgument);
	const uint64_t bytes = statistic(comm, ncclStatGpuMemTotal);
	for (int round = 0; round < 3; round++) {
		stage("round %d", round);
		dropin_check_usable(comm);
		CHECK_EQ(statistic(comm, ncclStatGpuMemSuspended), 0);
		CHECK_NC(nc.ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
		CHECK_NC(nc.ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
		CHECK_EQ(statistic(comm, ncclStatGpuMemSuspended), 1);
		CHECK_EQ(statistic(comm, ncclStatGpuMemSuspend), bytes);
		CHECK_EQ(statistic(comm, ncclStatGpuMemPersist), 0);
		CHECK_EQ(statistic(comm, ncclStatGpuMemTotal), bytes);
		CHECK_NC_IS(dropin_sum(p, comm, NULL), ncclInvalidUsage);
		CHECK_SAYS(NULL, "ncclCommResume");
		CHECK_NC_IS(nc.ncclCommSplit(comm, 0, 0, &other, NULL), ncclInvalidUsage);
		CHECK_NC(nc.ncclCommGetAsyncError(comm, &error));
		CHECK_EQ(error, ncclSuccess);
		CHECK_NC(nc.ncclCommResume(comm));
		CHECK_NC(nc.ncclCommResume(comm));
	}
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
	CHECK_NC(nc.ncclCommFinalize(comm));
	CHECK_NC(nc.ncclCommDestroy(comm));
	CHECK_CU(cu.cuMemFree(p));
}

static void test_suspend(void)
{
	ranks_run(2, suspend_rank, NULL);
}

/* ---- Structs of other releases ---- */

/* The version in NCCL_CONFIG_INITIALIZER, and sizeof(ncclConfig_t), in each release. */
static const struct {
	unsigned version;
	size_t bytes;
} releases[] = {
	{21400, 24}, {21700, 40}, {21800, 48}, {22703, 72},  {22809, 80},
	{22907, 88}, {23003, 96}, {23007, 96}, {23102, 112}, {23203, 120},
};

/* A config with garbage in the bytes that its release does not set, including those of a future
 * release. */
struct stranger {
	ncclConfig_t config;
	char tail[64];
};

static void join_with(const struct client *c, ncclConfig_t *config, int number)
{
	ncclComm_t comm;
	CHECK_NC(nc.ncclCommInitRankConfig(&comm, c->nranks, dropin_id_number(c, number), c->rank,
					   config));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void configs_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		struct stranger s = {.config = dropin_config()};
		const size_t bytes = releases[i].bytes;
		stage("a config of %u", releases[i].version);
		memset((char *)&s + bytes, 0x5a, sizeof(s) - bytes);
		s.config.size = bytes;
		s.config.version = releases[i].version;
		/* These releases have padding here. */
		if (releases[i].version < 21700)
			s.config.cgaClusterSize = 0x5a5a5a5a;
		if (releases[i].version < 22500 && bytes > offsetof(ncclConfig_t, trafficClass))
			s.config.trafficClass = 0x5a5a5a5a;
		if (releases[i].version == 23003)
			s.config.graphStreamOrdering = 0x5a5a5a5a;
		join_with(c, &s.config, 20 + (int)i);
	}
	stage("a config of a future release");
	struct stranger s = {.config = dropin_config()};
	memset(s.tail, 0x5a, sizeof(s.tail));
	s.config.size = sizeof(s);
	s.config.version = 29900;
	join_with(c, &s.config, 40);
	stage("fields of 2.32");
	s.config.nvlsHostMode = -1;
	ncclComm_t refused = NULL;
	CHECK_NC_IS(
		nc.ncclCommInitRankConfig(&refused, c->nranks, dropin_id(c), c->rank, &s.config),
		ncclInvalidArgument);
	CHECK_SAYS(NULL, "nvlsHostMode");
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void properties_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	static const size_t sizes[] = {40, 56, sizeof(ncclCommProperties_t),
				       sizeof(ncclCommProperties_t) + 64};
	union {
		ncclCommProperties_t p;
		unsigned char bytes[sizeof(ncclCommProperties_t) + 64];
	} is;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		stage("properties of %zu bytes", sizes[i]);
		memset(&is, 0x5a, sizeof(is));
		is.p.size = sizes[i];
		is.p.magic = NCCL_MAGIC;
		is.p.version = 22902;
		CHECK_NC(nc.ncclCommQueryProperties(comm, &is.p));
		CHECK_EQ(is.p.size, sizes[i]);
		CHECK_EQ(is.p.version, 22902);
		CHECK_EQ(is.p.rank, c->rank);
		CHECK_EQ(is.p.nRanks, c->nranks);
		CHECK_EQ(is.p.cudaDev, c->rank);
		CHECK(!is.p.deviceApiSupport && !is.p.multimemSupport);
		for (size_t k = sizes[i]; k < sizeof(is); k++)
			CHECK_EQ(is.bytes[k], 0x5a);
	}
	is.p.magic = 1;
	CHECK_NC_IS(nc.ncclCommQueryProperties(comm, &is.p), ncclInvalidArgument);
	CHECK_NC_IS(nc.ncclCommQueryProperties(comm, NULL), ncclInvalidArgument);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_configs(void)
{
	ranks_run(2, configs_rank, NULL);
}

static void test_properties(void)
{
	ranks_run(2, properties_rank, NULL);
}

/* ---- The configuration of one collective ---- */

static ncclCollConfig_t coll_config(void)
{
	return (ncclCollConfig_t){
		.size = sizeof(ncclCollConfig_t),
		.magic = NCCL_MAGIC,
		.version = 23203,
		.minCTAs = NCCL_INT_UNSET,
		.maxCTAs = NCCL_INT_UNSET,
		.nvlsCTAs = NCCL_INT_UNSET,
		.cgaClusterSize = NCCL_INT_UNSET,
		.forceAlgSelection = 1,
		.CTAPolicy = NCCL_INT_UNSET,
	};
}

static ncclResult_t sum_with(CUdeviceptr p, ncclComm_t comm, CUstream s,
			     const ncclCollConfig_t *config)
{
	return nc.ncclAllReduceConfig(at(p), at(p), DROPIN_WORDS, NCCLSVC_UINT32, NCCLSVC_SUM, comm,
				      s, config);
}

static void coll_configs_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	CUstream s = gpu_stream();
	CUevent launched;
	ncclCollConfig_t config = coll_config(), old = coll_config();
	CUdeviceptr p = dropin_words(1);
	CHECK_CU(cu.cuEventCreate(&launched, 0));
	stage("refused configs");
	config.magic = 1;
	CHECK_NC_IS(sum_with(p, comm, s, &config), ncclInvalidArgument);
	config = coll_config();
	config.algSelection = "nvls";
	CHECK_NC_IS(sum_with(p, comm, s, &config), ncclInvalidUsage);
	CHECK_SAYS(NULL, "forceAlgSelection");
	stage("accepted configs");
	config.forceAlgSelection = 0;
	config.userProfilerTag = 7;
	config.launchCompletionEvent = launched;
	CHECK_NC(sum_with(p, comm, s, &config));
	CHECK_CU(cu.cuEventSynchronize(launched));
	/* 2.31 had no event: these bytes are not one. */
	old.size = offsetof(ncclCollConfig_t, launchCompletionEvent);
	memset(&old.launchCompletionEvent, 0x5a, sizeof(old.launchCompletionEvent));
	CHECK_NC(sum_with(p, comm, s, &old));
	CHECK_NC(sum_with(p, comm, s, NULL));
	CHECK(gpu_stream_ends(s, WAIT_MS));
	gpu_check(p, (uint32_t)(c->nranks * c->nranks * c->nranks), DROPIN_WORDS, "three sums");
	stage("Broadcast and Reduce with a config");
	CHECK_NC(nc.ncclBroadcastConfig(at(p), at(p), 1, NCCLSVC_INT8, 0, comm, s, &config));
	CHECK_NC(nc.ncclReduceConfig(at(p), at(p), 1, NCCLSVC_INT8, NCCLSVC_SUM, 0, comm, s,
				     &config));
	CHECK(gpu_stream_ends(s, WAIT_MS));
	CHECK_CU(cu.cuEventDestroy(launched));
	CHECK_CU(cu.cuMemFree(p));
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_coll_configs(void)
{
	ranks_run(2, coll_configs_rank, NULL);
}

/* ---- Refusals ---- */

static void says(ncclResult_t is, const char *function)
{
	CHECK_EQ(is, ncclInvalidUsage);
	CHECK_SAYS(NULL, function);
}

static void refused_rank(struct client *c)
{
	ncclComm_t comm = dropin_join(c);
	ncclWaitSignalDesc_t signal = {1, 0, 0, 0};
	ncclParamHandle_t handle = (ncclParamHandle_t)-1;
	ncclEncryptionConfig_t encryption = {
		.size = sizeof(encryption), .magic = NCCL_MAGIC, .version = 23203};
	const char *text = "", **keys = &text;
	void *p = &signal;
	int8_t i8;
	uint64_t u64;
	uint32_t id;
	size_t offset;
	int n = 9;
	stage("one-sided operations");
	says(nc.ncclPutSignal(p, 1, NCCLSVC_INT8, 0, NULL, 0, 0, 0, 0, comm, NULL),
	     "ncclPutSignal");
	says(nc.ncclSignal(0, 0, 0, 0, comm, NULL), "ncclSignal");
	says(nc.ncclWaitSignal(1, &signal, comm, NULL), "ncclWaitSignal");
	CHECK_SAYS(NULL, "ncclSend");
	CHECK_NC_IS(nc.ncclSignal(0, 0, 0, 0, NULL, NULL), ncclInvalidArgument);
	stage("the device API");
	says(nc.ncclGetLsaDevicePointer(NULL, 0, 0, &p), "ncclGetLsaDevicePointer");
	CHECK(!p);
	says(nc.ncclGetPeerDevicePointer(NULL, 0, 0, &p), "ncclGetPeerDevicePointer");
	says(nc.ncclGetLsaMultimemDevicePointer(NULL, 0, &p), "ncclGetLsaMultimemDevicePointer");
	says(nc.ncclGetMultimemDevicePointer(NULL, 0, (ncclMultimemHandle_t){NULL}, &p),
	     "ncclGetMultimemDevicePointer");
	says(nc.ncclGetPeerDeviceLeInfo(NULL, 0, 0, &id, &offset), "ncclGetPeerDeviceLeInfo");
	CHECK_EQ(nc.ncclTeamCft(comm, 0).nRanks, 0);
	CHECK_EQ(nc.ncclTeamCftMultimem(comm).nRanks, 0);
	says(nc.ncclGinOutboxCreateRequirement(1, 1, p, p), "ncclGinOutboxCreateRequirement");
	stage("parameters");
	says(nc.ncclParamBind(&handle, "NCCL_ALGO"), "ncclParamBind");
	CHECK(!handle);
	says(nc.ncclParamGetI8(handle, &i8), "ncclParamGetI8");
	says(nc.ncclParamGetU64(handle, &u64), "ncclParamGetU64");
	says(nc.ncclParamGetStr(handle, &text), "ncclParamGetStr");
	says(nc.ncclParamGetParameter("NCCL_ALGO", &text, &n), "ncclParamGetParameter");
	CHECK(!text && n == 0);
	says(nc.ncclParamGetAllParameterKeys(&keys, &n), "ncclParamGetAllParameterKeys");
	CHECK(!keys);
	nc.ncclParamDumpAll();
	stage("encryption");
	CHECK_NC(nc.ncclSetEncryption(&encryption));
	encryption.mode = NCCL_ENCRYPTION_MODE_PSK;
	says(nc.ncclSetEncryption(&encryption), "ncclSetEncryption");
	encryption.magic = 1;
	CHECK_NC_IS(nc.ncclSetEncryption(&encryption), ncclInvalidArgument);
	CHECK(strcmp(nc.ncclGetErrorString(ncclTimeout), nc.ncclGetErrorString(99)));
	dropin_check_usable(comm);
	CHECK_NC(nc.ncclCommDestroy(comm));
}

static void test_refused(void)
{
	ranks_run(2, refused_rank, NULL);
}

const struct gpu_test nccl_newer_tests[] = {
	{"nccl/grow", test_grow, 2, 120, TEST_QUICK},
	{"nccl/suspend", test_suspend, 2, 120, TEST_QUICK},
	{"nccl/configs", test_configs, 2, 120, TEST_QUICK},
	{"nccl/properties", test_properties, 2, 120, TEST_QUICK},
	{"nccl/coll-configs", test_coll_configs, 2, 120, TEST_QUICK},
	{"nccl/refused-newer", test_refused, 2, 120, TEST_QUICK},
	{0},
};
