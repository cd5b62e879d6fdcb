/* SPDX-License-Identifier: Apache-2.0 */
#include "deadline.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/args.h"
#include "screen.h"

static void passed(int signal)
{
	static const char text[] = "ncclsvc-ctl: ncclsvcd did not answer in time: check whether it "
				   "is stopped, or use a longer --timeout\n";
	(void)signal;
	screen_leave();
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
	(void)n;
	_exit(EXIT_UNREACHABLE);
}

static void set(uint64_t ns)
{
	struct itimerval t = {.it_value = {.tv_sec = (time_t)(ns / 1000000000),
					   .tv_usec = (suseconds_t)(ns % 1000000000 / 1000)}};
	setitimer(ITIMER_REAL, &t, NULL);
}

void deadline_start(uint64_t ns)
{
	struct sigaction action = {.sa_handler = passed};
	sigemptyset(&action.sa_mask);
	sigaction(SIGALRM, &action, NULL);
	set(ns);
}

void deadline_stop(void)
{
	set(0);
}

int deadline_ms(uint64_t ns)
{
	uint64_t ms = ns / 1000000;
	return ms > INT_MAX ? INT_MAX : ms ? (int)ms : 1;
}
