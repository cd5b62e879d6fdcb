/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

/* stderr while a test runs: a memfd, from which the log can be read back. */
static int sink = -1, kept = -1;

static int catch_stderr(void **state)
{
	(void)state;
	sink = memfd_create("stderr", MFD_CLOEXEC);
	kept = dup(STDERR_FILENO);
	return sink < 0 || kept < 0 || dup2(sink, STDERR_FILENO) < 0;
}

static int free_stderr(void **state)
{
	(void)state;
	if (dup2(kept, STDERR_FILENO) < 0 || close(kept) || close(sink))
		return -1;
	return log_init(LOG_TARGET_STDERR, LOG_LEVEL_INFO);
}

static const char *logged(void)
{
	static char text[1 << 16];
	ssize_t n = pread(sink, text, sizeof(text) - 1, 0);

	assert_true(n >= 0);
	text[n] = '\0';
	return text;
}

static unsigned count(const char *what)
{
	unsigned n = 0;

	for (const char *p = logged(); (p = strstr(p, what)); p++)
		n++;
	return n;
}

static void test_form(void **state)
{
	regex_t form;

	(void)state;
	assert_int_equal(log_init(LOG_TARGET_STDERR, LOG_LEVEL_INFO), 0);
	assert_int_equal(
		regcomp(&form,
			"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z warning: two is 2: "
			"No such file or directory\n$",
			REG_EXTENDED | REG_NOSUB),
		0);
	errno = ENOENT;
	log_warning("two is %d: %m", 2);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(regexec(&form, logged(), 0, NULL, 0), 0);
	regfree(&form);
}

static void test_levels(void **state)
{
	(void)state;
	log_init(LOG_TARGET_STDERR, LOG_LEVEL_WARNING);
	log_error("m1");
	log_warning("m2");
	log_info("m3");
	log_debug("m4");
	assert_false(log_enabled(LOG_LEVEL_INFO));
	log_set_level(LOG_LEVEL_DEBUG);
	log_info("m5");
	log_debug("m6");
	assert_int_equal(count("error: m1\n"), 1);
	assert_int_equal(count("warning: m2\n"), 1);
	assert_int_equal(count("info: m5\n"), 1);
	assert_int_equal(count("debug: m6\n"), 1);
	assert_int_equal(count("\n"), 4);
}

static void test_long_message(void **state)
{
	char big[5000];

	(void)state;
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	log_info("%s", big);
	assert_int_equal(count("\n"), 1);
	assert_true(strlen(logged()) > 1000 && strlen(logged()) < 1200);
}

static void test_repeats_are_limited(void **state)
{
	(void)state;
	log_init(LOG_TARGET_STDERR, LOG_LEVEL_DEBUG);
	for (int i = 0; i < LOG_BURST + 7; i++) {
		log_info("again");
		log_debug("always");
	}
	log_info("elsewhere");
	assert_int_equal(count("again"), LOG_BURST);
	assert_int_equal(count("always"), LOG_BURST + 7);
	assert_int_equal(count("elsewhere"), 1);
	assert_int_equal(count("suppressed"), 0);
	log_flush();
	assert_int_equal(count("7 more messages from test_log.c:"), 1);
	log_flush();
	assert_int_equal(count("suppressed"), 1);
}

#define THREADS 4
#define EACH	500

static void *log_much(void *arg)
{
	(void)arg;
	for (int i = 0; i < EACH; i++)
		log_info("from a thread");
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t threads[THREADS];
	char expected[64];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_much, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	log_flush();
	assert_int_equal(count("from a thread\n"), LOG_BURST);
	snprintf(expected, sizeof(expected), "%d more messages", THREADS * EACH - LOG_BURST);
	assert_int_equal(count(expected), 1);
}

/* Standard error is a full pipe that is not read: the caller continues. */
static void test_nobody_reads(void **state)
{
	char rest[1 << 16];
	int ends[2];
	ssize_t n;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	memset(rest, '.', sizeof(rest));
	while (write(ends[1], rest, sizeof(rest)) > 0)
		;
	assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0); /* blocking, as we inherit it */
	assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
	close(ends[1]);
	log_error("first");
	log_error("second");
	while (read(ends[0], rest, sizeof(rest)) > 0)
		;
	log_error("third");
	n = read(ends[0], rest, sizeof(rest) - 1);
	assert_true(n > 0);
	rest[n] = '\0';
	assert_non_null(strstr(rest, "warning: 2 messages were lost"));
	assert_non_null(strstr(rest, "error: third"));
	close(ends[0]);
}

/* Another process's text may be part of a message, but cannot forge a line. */
static void test_one_line(void **state)
{
	(void)state;
	log_init(LOG_TARGET_STDERR, LOG_LEVEL_INFO);
	log_info("session 1 (%s) ended", "a\n2026-01-01T00:00:00.000Z error: forged\033[2J");
	assert_int_equal(count("\n"), 1);
	assert_non_null(strstr(logged(), "(a 2026-01-01T00:00:00.000Z error: forged?[2J) ended"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_form, catch_stderr, free_stderr),
		cmocka_unit_test_setup_teardown(test_levels, catch_stderr, free_stderr),
		cmocka_unit_test_setup_teardown(test_long_message, catch_stderr, free_stderr),
		cmocka_unit_test_setup_teardown(test_repeats_are_limited, catch_stderr,
						free_stderr),
		cmocka_unit_test_setup_teardown(test_threads, catch_stderr, free_stderr),
		cmocka_unit_test_setup_teardown(test_one_line, catch_stderr, free_stderr),
		cmocka_unit_test_setup_teardown(test_nobody_reads, catch_stderr, free_stderr),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
