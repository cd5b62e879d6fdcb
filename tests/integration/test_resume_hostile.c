/* SPDX-License-Identifier: Apache-2.0
 * A client without the library that asks to resume sessions and communicators. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness_raw.h"
#include "resume_programs.h"

static void refused(struct raw *r, struct svc_resume request)
{
	raw_refused(r, SVC_RESUME, &request, sizeof(request), NULL, 0, NCCLSVC_INVALID_ARGUMENT,
		    "");
}

static void accepted(struct raw *r, struct svc_resume request)
{
	struct raw_reply reply;
	raw_call(r, SVC_RESUME, &request, sizeof(request), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
}

static struct svc_join_reply joins(struct raw *r, const struct client *me)
{
	const struct svc_join join = raw_join_request(&me->id, 2, 1);
	struct raw_reply reply;
	raw_call(r, SVC_JOIN, &join, sizeof(join), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_OK);
	return reply.join;
}

static void come_back_with_lies(struct client *me)
{
	struct raw r;
	raw_open(&r, me->daemon);
	raw_attach(&r, 16);
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	const struct svc_join_reply first = joins(&r, me);
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	raw_close(&r);
	raw_open(&r, me->daemon);
	raw_attach(&r, 16);
	struct raw_region region = raw_region(&r, 65536);
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_COMM,
					 .number = first.comm,
					 .lineage = first.lineage});
	const struct svc_join_reply again = joins(&r, me);
	((uint64_t *)region.base)[7] = UINT64_C(1) << 22; /* lines */
	((uint64_t *)region.base)[10] = 1;		  /* no plan is under way */
	const ncclsvc_status st = raw_submit_wait(&r, (struct svc_record){.comm = again.comm,
									  .epoch = again.epoch,
									  .op = NCCLSVC_ALL_GATHER,
									  .type = NCCLSVC_UINT8,
									  .peer = -1,
									  .count = 56,
									  .src_region = region.id,
									  .src_offset = 56,
									  .dst_region = region.id});
	CHECK_EQ(st.result, NCCLSVC_OK);
	CHECK_EQ(hear(me), GO);
	raw_region_close(&region);
	raw_close(&r);
}

static void one_lies(struct client *me)
{
	if (me->rank == 1) {
		come_back_with_lies(me);
		return;
	}
	ncclsvc_session *s = session_open(me->daemon);
	ncclsvc_comm *comm = comm_join(me, s);
	ncclsvc_task task;
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	CHECK_RESULT(ncclsvc_barrier(comm, &task), NCCLSVC_PROTOCOL);
	CHECK(strstr(ncclsvc_last_error(), "operation histories are invalid"));
	say(me, READY);
	CHECK_EQ(hear(me), GO);
	ncclsvc_close(s);
}

/* Memory for what it says that it has done would be of any size. */
static void a_member_with_an_endless_history_is_left(void **state)
{
	struct daemon d;
	struct client clients[2];
	(void)state;
	share_state();
	daemon_start(&d, NULL);
	clients_start(clients, 2, &d, one_lies, NULL);
	hear_all(clients, 2, READY);
	kill_and_start(&d);
	say_all(clients, 2, GO);
	hear_all(clients, 1, READY);
	say_all(clients, 2, GO);
	clients_end(clients, 2);
	daemon_stop(&d);
}

static void hostile_resumptions_are_refused(void **state)
{
	static const uint32_t numbers[] = {1023, 1024, 4096, 0x7fffffff, UINT32_MAX};
	struct daemon d;
	struct raw r;
	ncclsvc_unique_id id;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION}); /* without a ring */
	raw_attach(&r, 16);
	refused(&r, (struct svc_resume){.kind = 0});
	refused(&r, (struct svc_resume){.kind = 5});
	refused(&r, (struct svc_resume){.kind = 6});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION, .reserved = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION, .number = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_REGION});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_REGION, .number = 1, .lineage = 1});
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_COMM, .number = 1});
	refused(&r,
		(struct svc_resume){.kind = SVC_RESUME_COMM, .number = 1, .lineage = UINT32_MAX});
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION});
	/* RESUME applies to the next request only, even if that is refused. */
	struct svc_region_add empty = {.kind = SVC_REGION_MEMFD};
	accepted(&r, (struct svc_resume){.kind = SVC_RESUME_REGION, .number = 9});
	const int memfd = memfd_create("empty", MFD_CLOEXEC);
	raw_refused(&r, SVC_REGION_ADD, &empty, sizeof(empty), &memfd, 1, NCCLSVC_INVALID_ARGUMENT,
		    "");
	close(memfd);
	struct raw_region region = raw_region(&r, 65536);
	CHECK_EQ(region.id, 1);
	const struct svc_join_reply alone = raw_join_alone(&r);
	refused(&r, (struct svc_resume){.kind = SVC_RESUME_SESSION}); /* it has joined */
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (numbers[i] >= 1024) { /* more handles than a session can have */
			CHECK_OK(ncclsvc_unique_id_create(&id));
			const struct svc_join join = raw_join_request(&id, 1, 0);
			accepted(&r, (struct svc_resume){.kind = SVC_RESUME_COMM,
							 .number = numbers[i],
							 .lineage = 7});
			raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_LIMIT, "");
		}
	}
	/* A handle that is taken, and an epoch of this daemon. */
	CHECK_OK(ncclsvc_unique_id_create(&id));
	struct svc_join join = raw_join_request(&id, 1, 0);
	accepted(&r,
		 (struct svc_resume){.kind = SVC_RESUME_COMM, .number = alone.comm, .lineage = 7});
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_LIMIT, "");
	struct svc_leave leave = {.comm = alone.comm};
	struct raw_reply reply;
	raw_call(&r, SVC_LEAVE, &leave, sizeof(leave), NULL, 0, &reply);
	memcpy(&join.id, alone.id, sizeof(join.id));
	accepted(&r,
		 (struct svc_resume){.kind = SVC_RESUME_COMM, .number = alone.comm, .lineage = 7});
	raw_refused(&r, SVC_JOIN, &join, sizeof(join), NULL, 0, NCCLSVC_STALE_EPOCH, "");
	raw_region_close(&region);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_member_with_an_endless_history_is_left),
		TEST(hostile_resumptions_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
