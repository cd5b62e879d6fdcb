/* SPDX-License-Identifier: Apache-2.0
 * Registered memory without pages: it is refused, or ends the session that punched holes into it.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bystanders.h"
#include "harness_raw.h"

static bool can_refuse_holes(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* Two ranks with a region each; the first removes its region's pages, and both submit. */
static void punch_and_submit(const struct daemon *d, struct svc_record record, uint64_t bytes)
{
	struct raw r[2];
	struct raw_region region[2];
	struct raw_reply reply;
	struct stat st;
	uint32_t request_ids[2];
	uint64_t number = 0;
	ncclsvc_unique_id id;
	CHECK_OK(ncclsvc_unique_id_create(&id));
	for (int i = 0; i < 2; i++) {
		raw_open(&r[i], d);
		raw_attach(&r[i], 16);
		region[i] = raw_region(&r[i], bytes);
		struct svc_join join = raw_join_request(&id, 2, i);
		request_ids[i] = raw_send(&r[i], SVC_JOIN, &join, sizeof(join), NULL, 0);
	}
	CHECK_EQ(fallocate(region[0].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			   (off_t)bytes),
		 0);
	for (int i = 0; i < 2; i++) {
		raw_reply_to(&r[i], request_ids[i], &reply);
		CHECK_EQ(reply.header.result, 0);
		record.comm = reply.join.comm;
		record.epoch = reply.join.epoch;
		record.src_region = record.dst_region = region[i].id;
		if (record.op == NCCLSVC_SEND || record.op == NCCLSVC_RECV) {
			record.op = i ? NCCLSVC_RECV : NCCLSVC_SEND;
			record.peer = 1 - i;
			*(i ? &record.src_region : &record.dst_region) = 0;
		}
		number = raw_ring_submit(&r[i], record);
	}
	ncclsvc_status status = raw_ring_wait(&r[1], number);
	CHECK_EQ(status.result, NCCLSVC_PEER_GONE);
	CHECK_EQ(status.rank_a, 0);
	raw_ends(&r[0], NCCLSVC_NO_MEMORY);
	/* The daemon has allocated nothing. */
	CHECK_EQ(fstat(region[0].fd, &st), 0);
	CHECK_EQ(st.st_blocks, 0);
	for (int i = 0; i < 2; i++) {
		raw_region_close(&region[i]);
		raw_close(&r[i]);
	}
}

static void holes_in_memory_end_their_owner_alone(void **state)
{
	struct daemon d;
	struct bystanders b;
	(void)state;
	if (!can_refuse_holes())
		skip_because("this system has no userfaultfd for us");
	daemon_start(&d, NULL);
	bystanders_start(&b, &d);
	struct svc_record record = {
		.op = NCCLSVC_ALL_REDUCE, .type = NCCLSVC_FLOAT32, .count = 16, .peer = -1};
	punch_and_submit(&d, record, SVC_PAGE);
	record.count = 1 << 20;
	punch_and_submit(&d, record, 4 << 20);
	record.op = NCCLSVC_SEND;
	punch_and_submit(&d, record, 4 << 20);
	record.count = 16;
	punch_and_submit(&d, record, SVC_PAGE);
	bystanders_end(&b);
	daemon_stop(&d);
}

static void memory_of_holes_is_refused(void **state)
{
	struct daemon d;
	struct raw r;
	struct svc_region_add add = {.bytes = 16 * SVC_PAGE};
	int fd = svc_memfd_create("holes", 16 * SVC_PAGE, true);
	(void)state;
	CHECK(fd >= 0);
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_refused(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, NCCLSVC_INVALID_ARGUMENT,
		    "fallocate");
	CHECK_EQ(posix_fallocate(fd, 0, 15 * SVC_PAGE), 0);
	raw_refused(&r, SVC_REGION_ADD, &add, sizeof(add), &fd, 1, NCCLSVC_INVALID_ARGUMENT,
		    "fallocate");
	/* The library fills what it registers. */
	void *p = NULL;
	ncclsvc_session *s = session_open(&d);
	CHECK_OK(ncclsvc_mem_register_fd(s, fd, 16 * SVC_PAGE, &p));
	ncclsvc_close(s);
	close(fd);
	raw_close(&r);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(holes_in_memory_end_their_owner_alone),
		TEST(memory_of_holes_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
