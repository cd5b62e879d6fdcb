/* SPDX-License-Identifier: Apache-2.0
 * A user tries to register another user's memory by its leaked CUDA IPC handle. */
#include <grp.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness_raw.h"
#include "proto/abi/peer_abi.h"
#include "tests/gpu/gpu_context.h"
#include "workers.h"

#define THIEF 65533
#define BYTES ((size_t)1 << 20)

enum { READY = 1, GO };

static void register_it(struct raw *r, const struct svc_region_cuda *region)
{
	struct raw_reply reply;
	raw_call(r, SVC_REGION_CUDA, region, sizeof(*region), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, 0);
}

static void own(struct client *me)
{
	struct svc_region_cuda *shown = me->arg;
	struct raw r, another;
	CUipcMemHandle handle;
	CUdeviceptr p;
	char text[256];
	CHECK(gpu_driver_open(text, sizeof(text)) > 0);
	gpu_use(0);
	CHECK_CU(cu.cuMemAlloc(&p, BYTES));
	CHECK_CU(cu.cuIpcGetMemHandle(&handle, p));
	*shown = (struct svc_region_cuda){.bytes = BYTES, .base = p};
	memcpy(shown->handle, &handle, sizeof(shown->handle));
	raw_open(&r, me->daemon);
	register_it(&r, shown);
	/* One process may have several sessions. */
	raw_open(&another, me->daemon);
	register_it(&another, shown);
	raw_close(&another);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	raw_close(&r);
}

static void is_refused(struct raw *r, struct svc_region_cuda region)
{
	raw_refused(r, SVC_REGION_CUDA, &region, sizeof(region), NULL, 0, NCCLSVC_PERMISSION,
		    "registered by another tenant");
}

static void steal(struct client *me)
{
	struct svc_region_cuda region = *(const struct svc_region_cuda *)me->arg;
	struct raw r;
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(THIEF, THIEF, THIEF), 0);
	CHECK_EQ(setresuid(THIEF, THIEF, THIEF), 0);
	raw_open(&r, me->daemon);
	is_refused(&r, region);
	/* The owner's regions have these numbers. */
	struct svc_join join = {.nranks = 1, .device = 0};
	for (join.staging = 1; join.staging <= 2; join.staging++)
		raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
			    "is not memory of cuMemCreate");
	region.buffer_id = 77;
	is_refused(&r, region);
	region.device = 1;
	is_refused(&r, region);
	/* The driver ignores this byte: another name for the same memory. */
	region.device = 0;
	region.handle[sizeof(region.handle) - 1] ^= 1;
	is_refused(&r, region);
	is_refused(&r, region);
	raw_close(&r);
}

static void imports_reach(const struct rank_group *c, int device, uint32_t n)
{
	for (uint64_t end = now_ns() + WAIT_MS * 1000000ull; device_of(c, device).imports != n;
	     sleep_ms(2))
		CHECK(now_ns() < end);
}

static void nothing_is_stolen(struct rank_group *c, struct svc_region_cuda *shown)
{
	struct client thief;
	imports_reach(c, 0, 1);
	clients_start(&thief, 1, &c->d, steal, shown);
	clients_end(&thief, 1);
	imports_reach(c, 0, 1);
	imports_reach(c, 1, 0);
}

static void another_users_handle_is_refused(void **state)
{
	struct rank_group c;
	struct client owner;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can be another user");
	ranks_prepare(&c, 2);
	struct svc_region_cuda *shown = mmap(NULL, sizeof(*shown), PROT_READ | PROT_WRITE,
					     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shown != MAP_FAILED);
	ranks_start_daemon(&c, "--access", "any", NULL);
	clients_start(&owner, 1, &c.d, own, shown);
	CHECK_EQ(hear(&owner), READY);
	nothing_is_stolen(&c, shown);
	/* The next worker imports it again, on behalf of the same user. */
	int before = device_of(&c, 0).pid;
	worker_kill(&c, 0);
	worker_replaced(&c, 0, before);
	nothing_is_stolen(&c, shown);
	say(&owner, GO);
	clients_end(&owner, 1);
	munmap(shown, sizeof(*shown));
	ranks_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS_TEST(another_users_handle_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
