/* SPDX-License-Identifier: Apache-2.0
 * Detecting MPS servers from what their control daemons leave behind: alive, ended, inaccessible.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/cuda/mps.h"
#include "proto/ncclsvc_types.h"

static char directory[64], control[80];

static int set_up(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/ncclsvc-test-mps-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(control, sizeof(control), "%s/control", directory);
	return setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1);
}

static int tear_down(void **state)
{
	(void)state;
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	unlink(control);
	return rmdir(directory);
}

static int control_daemon(int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(fd >= 0);
	memcpy(address.sun_path, control, strlen(control) + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	if (type != SOCK_DGRAM)
		assert_int_equal(listen(fd, 5), 0);
	return fd;
}

static struct mps look(void)
{
	struct mps m;
	mps_look(&m);
	assert_string_equal(m.directory, directory);
	return m;
}

static void test_none(void **state)
{
	(void)state;
	assert_int_equal(look().state, MPS_ABSENT);
	assert_int_equal(look().server, 0);
}

static void test_running_and_ended(void **state)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
	(void)state;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		int fd = control_daemon(types[i]);
		struct mps m = look();
		assert_int_equal(m.state, MPS_RUNNING);
		assert_true(m.server != 0);
		assert_true(look().server == m.server);
		if (types[i] != SOCK_DGRAM) /* it was not disturbed */
			assert_int_equal(accept(fd, NULL, NULL), -1);
		close(fd);
		m = look();
		assert_int_equal(m.state, MPS_STALE);
		assert_int_equal(m.server, 0);
		unlink(control);
	}
}

/* Runs as another user if this one is root, because root has access to everything. */
static void test_refused(void **state)
{
	(void)state;
	bool root = !geteuid();
	int fd = control_daemon(SOCK_STREAM);
	assert_int_equal(chmod(control, 0), 0);
	assert_int_equal(chmod(directory, 0755), 0);
	if (root)
		assert_int_equal(seteuid(65534), 0);
	enum mps_state closed = look().state;
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(chmod(directory, 0), 0);
	if (root)
		assert_int_equal(seteuid(65534), 0);
	enum mps_state hidden = look().state;
	if (root)
		assert_int_equal(seteuid(0), 0);
	assert_int_equal(chmod(directory, 0700), 0);
	assert_int_equal(closed, MPS_REFUSED);
	assert_int_equal(hidden, MPS_REFUSED);
	close(fd);
}

/* Two directories are two servers, whatever numbers their file systems use. */
static void test_two_servers(void **state)
{
	(void)state;
	int first = control_daemon(SOCK_STREAM);
	uint64_t server = look().server;
	assert_int_equal(unlink(control), 0);
	int second = control_daemon(SOCK_STREAM);
	/* The inode of the first is not free yet. */
	assert_true(look().server != server);
	close(first);
	close(second);
}

/* The driver decides; if it does not say, the environment counts. */
static void test_in_use(void **state)
{
	uint64_t server = 1;
	(void)state;
	assert_int_equal(mps_in_use(0, 0, &server), NCCLSVC_MPS_NONE);
	assert_int_equal(server, 0);
	assert_int_equal(mps_in_use(1, 1, &server), NCCLSVC_MPS_NONE);
	int fd = control_daemon(SOCK_SEQPACKET);
	assert_int_equal(mps_in_use(0, 1, &server), NCCLSVC_MPS_ACTIVE);
	assert_true(server && server == look().server);
	assert_int_equal(mps_in_use(1, 0, &server), NCCLSVC_MPS_ACTIVE);
	assert_true(server == look().server);
	assert_int_equal(mps_in_use(0, 0, &server), NCCLSVC_MPS_NONE);
	assert_int_equal(server, 0);
	close(fd);
}

static void test_long_directory(void **state)
{
	char path[200];
	struct mps m;
	(void)state;
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	setenv("CUDA_MPS_PIPE_DIRECTORY", path, 1);
	mps_look(&m);
	assert_int_equal(m.state, MPS_ABSENT);
	assert_int_equal(strlen(m.directory), sizeof(m.directory) - 1);
	setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
	mps_look(&m);
	assert_string_equal(m.directory, "/tmp/nvidia-mps");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_none, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_running_and_ended, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_two_servers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_in_use, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_directory, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
