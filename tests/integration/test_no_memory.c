/* SPDX-License-Identifier: Apache-2.0
 * A daemon that is out of memory: admitted work continues, new requests are refused, and everything
 * works again once there is memory. scarce_memory.c replaces the daemon's malloc. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "harness_raw.h"
#include "scarce_memory.h"

#define SESSIONS 32
#define ROUNDS	 200

static struct scarce_memory *memory;
static char path[] = "/tmp/ncclsvc-scarce-XXXXXX";

static int map_memory(void **state)
{
	(void)state;
	const int fd = mkstemp(path);
	if (fd < 0 || ftruncate(fd, sizeof(*memory)))
		return -1;
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return memory == MAP_FAILED ? -1 : 0;
}

static int unmap_memory(void **state)
{
	(void)state;
	munmap(memory, sizeof(*memory));
	return unlink(path);
}

static void start(struct daemon *d)
{
	memory->scarce = false;
	setenv("SCARCE_MEMORY", path, 1);
	setenv("LD_PRELOAD", program("SCARCE_MEMORY_LIBRARY"), 1);
	daemon_start(d, NULL);
	unsetenv("LD_PRELOAD");
	unsetenv("SCARCE_MEMORY");
}

/* Leaves the daemon no memory, including memory that it has freed since. */
static void take_memory(void)
{
	memory->left = 0;
	memory->scarce = true;
}

static struct svc_record barrier_of(const struct svc_join_reply *comm)
{
	return (struct svc_record){
		.op = NCCLSVC_BARRIER, .peer = -1, .comm = comm->comm, .epoch = comm->epoch};
}

static void submit(struct raw *r, const struct svc_join_reply *comm)
{
	CHECK_EQ(raw_submit_wait(r, barrier_of(comm)).result, NCCLSVC_OK);
}

/* Submits tasks by socket, which use up the daemon's reserve, until one is refused. */
static void use_reserve(struct raw *r, const struct svc_join_reply *comm)
{
	const struct svc_record record = barrier_of(comm);
	struct raw_reply reply;
	for (int tries = 0; tries < 100; tries++) {
		take_memory();
		raw_call(r, SVC_SUBMIT, &record, sizeof(record), NULL, 0, &reply);
		if (reply.header.result == NCCLSVC_NO_MEMORY)
			return;
		CHECK_EQ(reply.header.result, NCCLSVC_OK);
	}
	CHECK(!"no task is refused");
}

static uint32_t sessions(struct raw *r)
{
	const struct svc_daemon_info_request ask = {0};
	struct raw_reply reply;
	raw_call(r, SVC_DAEMON_INFO, &ask, sizeof(ask), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	return reply.info.info.sessions;
}

/* Either the reserve is short, or a request does not fit into what is left beside it. The texts
 * differ. */
static void join_refused(struct raw *r)
{
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	const struct svc_join join = raw_join_request(&id, 1, 0);
	raw_refused(r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_NO_MEMORY, "memory");
}

static void requests_are_refused_until_there_is_memory(void **state)
{
	struct daemon d;
	struct raw r, late;
	ncclsvc_daemon_info info;
	struct raw_reply reply;
	(void)state;
	start(&d);
	raw_open(&r, &d);
	raw_attach(&r, 16);
	struct svc_join_reply comm = raw_join_alone(&r), other = raw_join_alone(&r);
	struct raw_region region = raw_region(&r, 4096);
	use_reserve(&r, &comm);
	CHECK(memory->refused);
	join_refused(&r);
	raw_refused(&r, SVC_REGION_ADD, &(struct svc_region_add){.bytes = 4096},
		    sizeof(struct svc_region_add), &region.fd, 1, NCCLSVC_NO_MEMORY, "memory");
	raw_connect(&late, &d);
	raw_ends(&late, NCCLSVC_NO_MEMORY);
	raw_close(&late);
	/* Existing communicators still work, and requests that release resources succeed. */
	CHECK_EQ(raw_ring_wait(&r, raw_ring_submit(&r, barrier_of(&comm))).result, NCCLSVC_OK);
	CHECK_EQ(sessions(&r), 1);
	raw_call(&r, SVC_LEAVE, &(struct svc_leave){.comm = other.comm}, sizeof(struct svc_leave),
		 NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	raw_call(&r, SVC_REGION_DEL, &(struct svc_region_del){.region = region.id},
		 sizeof(struct svc_region_del), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	memory->scarce = false;
	other = raw_join_alone(&r);
	submit(&r, &other);
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_daemon(s, &info));
	ncclsvc_close(s);
	raw_region_close(&region);
	raw_close(&r);
	daemon_stop(&d);
}

/* Out of memory, the daemon refuses tasks and cancellations, and can end sessions and epochs. */
static void a_storm_without_memory(void **state)
{
	struct daemon d;
	static struct raw r[SESSIONS];
	static struct svc_join_reply comm[SESSIONS];
	(void)state;
	start(&d);
	for (int i = 0; i < SESSIONS; i++) {
		raw_open(&r[i], &d);
		comm[i] = raw_join_alone(&r[i]);
	}
	use_reserve(&r[0], &comm[0]);
	for (int k = 0; k < ROUNDS; k++) {
		const struct svc_record record = barrier_of(&comm[0]);
		const struct svc_cancel cancel = {.kind = SVC_CANCEL_TASK, .id = 77};
		raw_refused(&r[0], SVC_SUBMIT, &record, sizeof(record), NULL, 0, NCCLSVC_NO_MEMORY,
			    "the daemon is out of memory");
		raw_refused(&r[0], SVC_CANCEL, &cancel, sizeof(cancel), NULL, 0, NCCLSVC_NO_MEMORY,
			    "the daemon is out of memory");
		join_refused(&r[0]);
	}
	for (int i = 1; i < SESSIONS; i++)
		raw_close(&r[i]);
	while (sessions(&r[0]) > 1)
		sleep_ms(2);
	memory->scarce = false;
	raw_join_alone(&r[0]);
	submit(&r[0], &comm[0]);
	raw_close(&r[0]);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(requests_are_refused_until_there_is_memory),
		TEST(a_storm_without_memory),
	};
	return cmocka_run_group_tests_name("no_memory", tests, map_memory, unmap_memory);
}
