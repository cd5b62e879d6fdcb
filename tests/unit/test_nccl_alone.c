/* SPDX-License-Identifier: Apache-2.0
 * The drop-in without a daemon: its version, and where the NCCL_DEBUG lines go. Argument: the
 * drop-in. */
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/abi/nccl_abi.h"

static const char *dropin;
static char directory[] = "/tmp/nccl-alone-XXXXXX";

static void *function(const char *name)
{
	void *library = dlopen(dropin, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail_msg("%s", dlerror());
	void *found = dlsym(library, name);
	assert_non_null(found);
	return found;
}

static void test_version(void **state)
{
	int version = 0;
	ncclResult_t (*get_version)(int *) = function("ncclGetVersion");
	(void)state;
	assert_int_equal(get_version(&version), ncclSuccess);
	assert_int_equal(version, NCCL_VERSION_NEEDED);
}

static void test_debug_file(void **state)
{
	char path[256], host[65] = "", text[4096] = "";
	ncclResult_t (*count)(void *, int *) = function("ncclCommCount");
	int n = 0;
	(void)state;
	assert_int_equal(count(NULL, &n), ncclInvalidArgument);
	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/%s.%d.%%.x", directory, host, getpid());
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	assert_non_null(strstr(text, "NCCL WARN "));
	unlink(path);
}

int main(int argc, char *argv[])
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_version),
		cmocka_unit_test(test_debug_file),
	};
	char file[256];
	if (argc != 2 || !mkdtemp(directory))
		return 1;
	dropin = argv[1];
	snprintf(file, sizeof(file), "%s/%%h.%%p.%%%%.x", directory);
	setenv("NCCL_DEBUG", "WARN", 1);
	setenv("NCCL_DEBUG_FILE", file, 1);
	setenv("NCCLSVC_SOCKET", "/nonexistent/ncclsvcd.sock", 1);
	const int failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(directory);
	return failed;
}
