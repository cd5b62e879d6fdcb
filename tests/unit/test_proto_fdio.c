/* SPDX-License-Identifier: Apache-2.0
 * Datagrams with file descriptors, and which memfds are trusted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/fdio.h"

static int pair[2];
static int fds_before;

static int open_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int setup(void **state)
{
	(void)state;
	fds_before = open_fds();
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
}

static int teardown(void **state)
{
	(void)state;
	svc_close_fds(pair, 2);
	return open_fds() == fds_before ? 0 : -1;
}

/* Sends without svc_send's limit, as a hostile client would. */
static void send_many(const void *message, size_t length, unsigned nfds)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 253)];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)message, length};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.bytes,
			     .msg_controllen = CMSG_SPACE(sizeof(int) * nfds)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
	for (unsigned i = 0; i < nfds; i++)
		memcpy(CMSG_DATA(c) + i * sizeof(int), &pair[0], sizeof(int));
	assert_int_equal(sendmsg(pair[0], &msg, MSG_NOSIGNAL), length);
}

static void fds_travel_close_on_exec(void **state)
{
	(void)state;
	char buf[16];
	int fds[SVC_FDS_MAX], sent[SVC_FDS_MAX] = {pair[0], pair[1], pair[0], pair[1]};
	unsigned nfds;
	for (unsigned n = 0; n <= SVC_FDS_MAX; n++) {
		assert_int_equal(svc_send(pair[0], "hello", 5, sent, n, 0), 0);
		assert_int_equal(svc_recv(pair[1], buf, sizeof(buf), fds, &nfds, 0), 5);
		assert_int_equal(nfds, n);
		for (unsigned i = 0; i < n; i++)
			assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		svc_close_fds(fds, n);
	}
	assert_int_equal(svc_send(pair[0], "x", 1, sent, SVC_FDS_MAX + 1, 0), -EINVAL);
}

static void too_many_fds_are_counted_and_closed(void **state)
{
	(void)state;
	char buf[16];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	int before = open_fds();
	send_many("x", 1, 253);
	assert_int_equal(svc_recv(pair[1], buf, sizeof(buf), fds, &nfds, 0), 1);
	assert_int_equal(nfds, 253);
	svc_close_fds(fds, SVC_FDS_MAX);
	assert_int_equal(open_fds(), before);
}

static void a_cut_message_loses_no_fd(void **state)
{
	(void)state;
	char buf[4];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	int before = open_fds();
	send_many("longer than that", 16, 3);
	assert_int_equal(svc_recv(pair[1], buf, sizeof(buf), fds, &nfds, 0), -EMSGSIZE);
	assert_int_equal(nfds, 0);
	assert_int_equal(open_fds(), before);
}

static void ends_are_told_apart(void **state)
{
	(void)state;
	char buf[4];
	int fds[SVC_FDS_MAX];
	unsigned nfds;
	assert_int_equal(svc_recv(pair[1], buf, 4, fds, &nfds, MSG_DONTWAIT), -EAGAIN);
	svc_close_fds(pair, 1);
	assert_int_equal(svc_recv(pair[1], buf, 4, fds, &nfds, 0), 0);
	assert_int_equal(svc_send(pair[1], "x", 1, NULL, 0, 0), -EPIPE);
}

static void own_memfds_are_trusted_and_cannot_shrink(void **state)
{
	(void)state;
	char text[SVC_TEXT_BYTES];
	int fd = svc_memfd_create("test", 8192, true);
	assert_true(fd >= 0);
	assert_true(svc_memfd_trusted(fd, 8192, text));
	assert_true(svc_memfd_trusted(fd, 1, text));
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 16384), -1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_false(svc_memfd_trusted(fd, 8193, text));
	assert_non_null(strstr(text, "smaller"));
	assert_false(svc_memfd_trusted(fd, UINT64_MAX, text));
	close(fd);
}

static int opened_again(int fd, int flags)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

static void not_trusted(int fd, const char *why)
{
	char text[SVC_TEXT_BYTES] = "";
	assert_false(svc_memfd_trusted(fd, 1, text));
	assert_non_null(strstr(text, why));
	close(fd);
}

static void other_fds_are_not_trusted(void **state)
{
	(void)state;
	int fds[2];
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	not_trusted(fds[0], "not a memfd");
	not_trusted(fds[1], "not a memfd");
	not_trusted(open("/dev/null", O_RDWR | O_CLOEXEC), "not a memfd");
	not_trusted(-1, "not a memfd");

	int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	not_trusted(fd, "F_SEAL_SHRINK");
	fd = memfd_create("unsealable", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 4096), 0);
	not_trusted(fd, "F_SEAL_SHRINK");
	fd = memfd_create("readonly", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
	not_trusted(fd, "against writing");
	fd = svc_memfd_create("test", 4096, true);
	not_trusted(opened_again(fd, O_RDONLY), "reading and writing");
	not_trusted(opened_again(fd, O_WRONLY), "reading and writing");
	close(fd);
	fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	if (fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
		not_trusted(fd, "hugetlb");
	else
		close(fd);
}

static void is_of_kind(int fd, enum svc_fd_kind kind)
{
	assert_true(fd >= 0);
	assert_int_equal(svc_fd_kind(fd), kind);
	close(fd);
}

static void kinds_of_fds_are_told_apart(void **state)
{
	(void)state;
	char path[64];
	int fd = memfd_create("test", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	is_of_kind(open(path, O_PATH | O_CLOEXEC), SVC_FD_OTHER);
	is_of_kind(fd, SVC_FD_MEMORY);
	is_of_kind(svc_memfd_create("test", 4096, true), SVC_FD_MEMORY);
	is_of_kind(open("/dev/null", O_RDWR | O_CLOEXEC), SVC_FD_OTHER);
	is_of_kind(open("/proc/self/status", O_RDONLY | O_CLOEXEC), SVC_FD_OTHER);
	is_of_kind(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), SVC_FD_OTHER);
	is_of_kind(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), SVC_FD_OTHER);
	assert_int_equal(svc_fd_kind(-1), SVC_FD_OTHER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(fds_travel_close_on_exec, setup, teardown),
		cmocka_unit_test_setup_teardown(too_many_fds_are_counted_and_closed, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_cut_message_loses_no_fd, setup, teardown),
		cmocka_unit_test_setup_teardown(ends_are_told_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(own_memfds_are_trusted_and_cannot_shrink, setup,
						teardown),
		cmocka_unit_test_setup_teardown(other_fds_are_not_trusted, setup, teardown),
		cmocka_unit_test_setup_teardown(kinds_of_fds_are_told_apart, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
