/* SPDX-License-Identifier: Apache-2.0 */
#include "child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ncclsvc.h"
#include "rank_command.h"

static volatile sig_atomic_t caught;

void complain(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "%sncclsvc-perf: ", isatty(STDERR_FILENO) ? "\r\033[K" : "");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}

bool complain_of(const char *what)
{
	if (!caught_signal())
		complain("%s: %s", what, ncclsvc_last_error());
	return false;
}

static void on_signal(int signal)
{
	caught = signal;
}

void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
}

int caught_signal(void)
{
	return caught;
}

void sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	nanosleep(&t, NULL);
}

static void become_child(pid_t parent)
{
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
}

pid_t fork_child(void)
{
	pid_t parent = getpid();
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		become_child(parent);
		/* Ctrl-C on the terminal reaches the whole process group, but ncclsvc-perf ends its
		 * children in order. */
		signal(SIGINT, SIG_IGN);
	}
	return pid;
}

pid_t spawn(char *const argv[], int log_fd)
{
	pid_t parent = getpid();
	int report[2];
	if (pipe2(report, O_CLOEXEC) < 0)
		return -1;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		become_child(parent);
		setpgid(0, 0);
		/* A service manager meant it for this program only. */
		unsetenv("NOTIFY_SOCKET");
		unsetenv("WATCHDOG_USEC");
		unsetenv("LISTEN_FDS");
		int null = open("/dev/null", O_RDONLY);
		if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
		    dup2(log_fd, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0)
			execvp(argv[0], argv);
		int error = errno;
		(void)!write(report[1], &error, sizeof(error));
		_exit(127);
	}
	int saved = errno;
	close(report[1]);
	int error = 0;
	if (pid > 0 && read(report[0], &error, sizeof(error)) == (ssize_t)sizeof(error)) {
		waitpid(pid, NULL, 0);
		saved = error;
		pid = -1;
	}
	close(report[0]);
	errno = saved;
	return pid;
}

bool wait_child(pid_t pid, int timeout_ms, int *status)
{
	uint64_t end = perf_now_ns() + (uint64_t)timeout_ms * 1000000;
	for (;;) {
		pid_t got = waitpid(pid, status, WNOHANG);
		if (got == pid)
			return true;
		if (got < 0 && errno != EINTR) {
			*status = 0;
			return true;
		}
		if (perf_now_ns() >= end)
			return false;
		sleep_ms(2);
	}
}

int stop_child(pid_t pid, bool group, int grace_ms)
{
	int status = 0;
	pid_t target = group ? -pid : pid;
	if (!wait_child(pid, 0, &status)) {
		kill(target, SIGTERM);
		if (!wait_child(pid, grace_ms, &status)) {
			kill(target, SIGKILL);
			waitpid(pid, &status, 0);
		}
	}
	if (group)
		kill(target, SIGKILL); /* kill what is left of the group; ESRCH if nothing is */
	return status;
}

char *describe_status(int status, char *buf, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(buf, size, "was killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(buf, size, "exited with status %d", WEXITSTATUS(status));
	return buf;
}
