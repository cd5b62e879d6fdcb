/* SPDX-License-Identifier: Apache-2.0
 * CUDA's environment after a session is opened: MPS as the daemon advises, unless CUDA is
 * initialized or the user has chosen otherwise. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "client_cuda.h"

#define DIRECTORY   "CUDA_MPS_PIPE_DIRECTORY"
#define CONNECTIONS "CUDA_DEVICE_MAX_CONNECTIONS"
#define LED	    "NCCLSVC_MPS_DIRECTORY"
#define THERE	    "/run/ncclsvc/s.mps"

static void advise(enum svc_mps_advice advice, const char *directory)
{
	peer.says = (struct svc_hello_reply){.mps = advice};
	memset(peer.says.mps_directory, 'x', sizeof(peer.says.mps_directory));
	strcpy(peer.says.mps_directory, directory);
}

static int clean_setup(void **state)
{
	unsetenv(DIRECTORY);
	unsetenv(CONNECTIONS);
	unsetenv(LED);
	setup(state);
	advise(SVC_MPS_JOIN, THERE);
	return 0;
}
#define CLEAN_TEST(name) cmocka_unit_test_setup_teardown(name, clean_setup, teardown)

static void finds(const char *directory, const char *connections)
{
	ncclsvc_close(session(true));
	if (directory)
		assert_string_equal(getenv(DIRECTORY), directory);
	else
		assert_null(getenv(DIRECTORY));
	if (connections)
		assert_string_equal(getenv(CONNECTIONS), connections);
	else
		assert_null(getenv(CONNECTIONS));
}

static void is_set_before_cuda(void **state)
{
	(void)state;
	finds(THERE, "32");
}

static void empty_is_not_set(void **state)
{
	(void)state;
	setenv(DIRECTORY, "", 1);
	finds(THERE, "32");
}

static void the_user_comes_first(void **state)
{
	(void)state;
	setenv(CONNECTIONS, "1", 1);
	finds(THERE, "1");
	setenv(DIRECTORY, "/nonexistent", 1);
	unsetenv(CONNECTIONS);
	finds("/nonexistent", NULL);
}

static void no_advice(void **state)
{
	(void)state;
	advise(SVC_MPS_NONE, "");
	finds(NULL, NULL);
	advise(SVC_MPS_OTHER_TENANT, "");
	finds(NULL, NULL);
	/* The directory is ignored as well. */
	advise(SVC_MPS_OTHER_TENANT, THERE);
	finds(NULL, NULL);
	advise((enum svc_mps_advice)77, THERE);
	finds(NULL, NULL);
}

/* A value set by a session, or a parent's session, is not the user's choice. */
static void it_is_set_again(void **state)
{
	(void)state;
	finds(THERE, "32");
	advise(SVC_MPS_JOIN, "/run/other");
	finds("/run/other", "32");
	advise(SVC_MPS_OTHER_TENANT, "");
	finds(NULL, "32");
	advise(SVC_MPS_JOIN, THERE);
	finds(THERE, "32");
	setenv(DIRECTORY, "/mine", 1);
	finds("/mine", "32");
	advise(SVC_MPS_NONE, "");
	finds("/mine", "32");
}

static void refused(const char *why)
{
	ncclsvc_result r;
	assert_null(peer_session(&peer, true, &r));
	assert_int_equal(r, NCCLSVC_PROTOCOL);
	says(why);
	assert_null(getenv(DIRECTORY));
}

static void bad_directories(void **state)
{
	char *directory = peer.says.mps_directory;
	(void)state;
	advise(SVC_MPS_JOIN, "");
	refused("not an absolute path");
	advise(SVC_MPS_JOIN, "run/ncclsvc");
	refused("not an absolute path");
	memset(directory, '/', sizeof(peer.says.mps_directory)); /* without a terminating NUL */
	refused("too long");
	directory[NCCLSVC_MPS_DIRECTORY_MAX + 1] = '\0';
	refused("too long");
	directory[NCCLSVC_MPS_DIRECTORY_MAX] = '\0';
	finds(directory, "32");
}

static void a_reattach_sets_nothing(void **state)
{
	(void)state;
	advise(SVC_MPS_NONE, "");
	ncclsvc_session *s = session(true);
	advise(SVC_MPS_JOIN, THERE);
	peer_hang_up(&peer);
	assert_int_equal(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_OK);
	assert_null(getenv(DIRECTORY));
	ncclsvc_close(s);
}

static void not_after_cuda(void **state)
{
	(void)state;
	finds(NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest before[] = {
		CLEAN_TEST(is_set_before_cuda),	     CLEAN_TEST(empty_is_not_set),
		CLEAN_TEST(the_user_comes_first),    CLEAN_TEST(no_advice),
		CLEAN_TEST(it_is_set_again),	     CLEAN_TEST(bad_directories),
		CLEAN_TEST(a_reattach_sets_nothing),
	};
	const struct CMUnitTest loaded[] = {CLEAN_TEST(is_set_before_cuda)};
	const struct CMUnitTest after[] = {CLEAN_TEST(not_after_cuda)};
	int failed = cmocka_run_group_tests_name("before CUDA", before, NULL, NULL);
	if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
		return failed ? failed : 77;
	failed += cmocka_run_group_tests_name("with CUDA loaded", loaded, NULL, NULL);
	unsetenv(DIRECTORY);
	gpus_open();
	failed += cmocka_run_group_tests_name("with CUDA initialized", after, NULL, NULL);
	gpus_close();
	return failed;
}
