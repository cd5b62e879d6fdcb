/* SPDX-License-Identifier: Apache-2.0
 * The private directory, and finding programs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child_process.h"

#define TAIL_LINES 12

static char dir[64];
static pid_t dir_owner;

const char *private_dir(void)
{
	if (dir[0])
		return dir;
	/* Sockets are created there, and sun_path is short, so a long TMPDIR is not used. */
	const char *tmp = getenv("TMPDIR");
	if (!tmp || tmp[0] != '/' || strlen(tmp) > 32)
		tmp = "/tmp";
	snprintf(dir, sizeof(dir), "%s/ncclsvc-perf.XXXXXX", tmp);
	if (!mkdtemp(dir)) {
		complain("can't make a directory %s: %s", dir, strerror(errno));
		dir[0] = '\0';
		return NULL;
	}
	dir_owner = getpid();
	return dir;
}

/* Removes a directory's contents, recursively. */
static void remove_tree(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	if (!d) {
		if (fd >= 0)
			close(fd);
		unlinkat(at, name, 0);
		return;
	}
	for (struct dirent *e; (e = readdir(d));) {
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			remove_tree(dirfd(d), e->d_name);
	}
	closedir(d);
	unlinkat(at, name, AT_REMOVEDIR);
}

void remove_private_dir(void)
{
	if (dir[0] && dir_owner == getpid())
		remove_tree(AT_FDCWD, dir);
	dir[0] = '\0';
}

void show_tail(const char *path)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return;
	long at[TAIL_LINES] = {0};
	char line[512];
	unsigned n = 0;
	do
		at[n++ % TAIL_LINES] = ftell(f);
	while (fgets(line, sizeof(line), f));
	fseek(f, n > TAIL_LINES ? at[n % TAIL_LINES] : 0, SEEK_SET);
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		fprintf(stderr, "  | %s\n", line);
	}
	fclose(f);
}

static bool runnable(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool own_directory(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	if (!slash)
		return false;
	*slash = '\0';
	return true;
}

static bool in_path(const char *name, char *path, size_t size)
{
	const char *list = getenv("PATH");
	while (list && *list) {
		size_t n = strcspn(list, ":");
		if (n && snprintf(path, size, "%.*s/%s", (int)n, list, name) < (int)size &&
		    runnable(path))
			return true;
		list += n + (list[n] == ':');
	}
	return false;
}

bool find_program(const char *name, const char *variable, const char *const *places, char *path,
		  size_t size)
{
	const char *said = getenv(variable);
	if (said && *said) {
		if (snprintf(path, size, "%s", said) < (int)size && runnable(path))
			return true;
		complain("$%s is %s, which is not an executable program", variable, said);
		return false;
	}
	char own[PATH_MAX];
	bool have_own = own_directory(own, sizeof(own));
	if (have_own && snprintf(path, size, "%s/%s", own, name) < (int)size && runnable(path))
		return true;
	for (size_t i = 0; places[i]; i++) {
		bool absolute = places[i][0] == '/';
		if (!absolute && !have_own)
			continue;
		int n = absolute ? snprintf(path, size, "%s/%s", places[i], name)
				 : snprintf(path, size, "%s/%s/%s", own, places[i], name);
		if (n < (int)size && runnable(path))
			return true;
	}
	if (in_path(name, path, size))
		return true;
	complain("can't find %s beside this program or in PATH; set $%s to its path", name,
		 variable);
	return false;
}
