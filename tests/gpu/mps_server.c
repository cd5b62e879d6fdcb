/* SPDX-License-Identifier: Apache-2.0 */
#include "mps_server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runner.h"

#define CONTROL "nvidia-cuda-mps-control"

static char dir[64], control[512];

static bool executable(const char *folder)
{
	snprintf(control, sizeof(control), "%s/" CONTROL, folder);
	return !access(control, X_OK);
}

static bool find_below(const char *folder)
{
	char command[256];
	snprintf(command, sizeof(command),
		 "find %s -xdev -name " CONTROL " -type f -perm -u+x 2>/dev/null", folder);
	FILE *f = popen(command, "re");
	if (!f)
		return false;
	bool found = fgets(control, sizeof(control), f) != NULL;
	pclose(f);
	control[strcspn(control, "\n")] = '\0';
	return found && !access(control, X_OK);
}

static bool find_control(void)
{
	char path[4096], *rest = path;
	snprintf(path, sizeof(path), "%s", getenv("PATH") ? getenv("PATH") : "");
	for (char *folder; (folder = strsep(&rest, ":"));)
		if (*folder && executable(folder))
			return true;
	return executable("/usr/local/nvidia/bin") || executable("/usr/bin") || find_below("/usr");
}

/* Runs the control program with that input. Returns its exit code, or -1. */
static int run_control(const char *option, const char *input)
{
	int in[2], status;
	if (pipe2(in, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = fork();
	if (!pid) {
		dup2(in[0], STDIN_FILENO);
		execl(control, control, option, NULL);
		_exit(127);
	}
	close(in[0]);
	ssize_t n = write(in[1], input, strlen(input));
	(void)n; /* the program may exit without reading it */
	close(in[1]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static bool make_dirs(void)
{
	char path[96];
	snprintf(dir, sizeof(dir), "/tmp/ncclsvc-mps-XXXXXX");
	if (!mkdtemp(dir))
		return false;
	snprintf(path, sizeof(path), "%s/log", dir);
	mkdir(path, 0700);
	setenv("CUDA_MPS_LOG_DIRECTORY", path, 1);
	snprintf(path, sizeof(path), "%s/pipe", dir);
	mkdir(path, 0700);
	setenv("CUDA_MPS_PIPE_DIRECTORY", path, 1);
	unsetenv("NCCLSVCD_MPS"); /* so that daemons look for the server */
	return true;
}

bool mps_start(char *text, size_t size)
{
	if (!find_control()) {
		snprintf(text, size, "there is no %s on this machine", CONTROL);
		return false;
	}
	if (!make_dirs()) {
		snprintf(text, size, "no directory can be made in /tmp: %s", strerror(errno));
		return false;
	}
	int code = run_control("-d", "");
	if (code) {
		snprintf(text, size, "%s -d ends with %d", control, code);
		mps_stop();
		return false;
	}
	return true;
}

static pid_t control_pid(void)
{
	char path[128];
	int pid = 0;
	snprintf(path, sizeof(path), "%s/pipe/" CONTROL ".pid", dir);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &pid) != 1)
		pid = 0;
	fclose(f);
	return pid;
}

void mps_stop(void)
{
	if (!dir[0])
		return;
	pid_t pid = control_pid();
	run_control(NULL, "quit\n");
	for (int i = 0; pid > 0 && i < 200 && !kill(pid, 0); i++)
		sleep_ms(50);
	if (pid > 0 && !kill(pid, 0)) {
		printf("the MPS control daemon (pid %d) does not quit and is killed\n", pid);
		kill(pid, SIGKILL);
	}
	remove_directory(dir);
	dir[0] = '\0';
	mps_avoid();
}

void mps_avoid(void)
{
	unsetenv("CUDA_MPS_LOG_DIRECTORY");
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/ncclsvc-no-mps", 1);
	setenv("NCCLSVCD_MPS", "off", 1);
}
