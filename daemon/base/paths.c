/* SPDX-License-Identifier: Apache-2.0 */
#include "paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "build_config.h"

#define SUN_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

const char *paths_env(char *const envp[], const char *name)
{
	size_t n = strlen(name);

	for (; *envp; envp++)
		if (!strncmp(*envp, name, n) && (*envp)[n] == '=')
			return (*envp)[n + 1] ? *envp + n + 1 : NULL;
	return NULL;
}

/* systemd separates several directories with colons; use the first one. */
static int first_of(const char *list)
{
	return (int)strcspn(list, ":");
}

int paths_default_socket(char *buf, size_t size, uid_t uid, char *const envp[], char *why,
			 size_t why_size)
{
	const char *service = paths_env(envp, "RUNTIME_DIRECTORY");
	const char *user = paths_env(envp, "XDG_RUNTIME_DIR");
	char path[PATH_MAX];

	if (service) {
		snprintf(path, sizeof(path), "%.*s/ncclsvcd.sock", first_of(service), service);
	} else if (uid == 0) {
		snprintf(path, sizeof(path), "/run/ncclsvc/ncclsvcd.sock");
	} else if (user) {
		snprintf(path, sizeof(path), "%s/ncclsvc/ncclsvcd.sock", user);
	} else {
		snprintf(why, why_size,
			 "no default: XDG_RUNTIME_DIR is not set; log in with a session, or give "
			 "--socket PATH");
		return -1;
	}
	if (paths_check_socket(path, why, why_size))
		return -1;
	snprintf(buf, size, "%s", path);
	return 0;
}

int paths_default_config(char *buf, size_t size, uid_t uid, char *const envp[])
{
	const char *service = paths_env(envp, "CONFIGURATION_DIRECTORY");
	const char *xdg = paths_env(envp, "XDG_CONFIG_HOME");
	const char *home = paths_env(envp, "HOME");
	int n;

	if (service)
		n = snprintf(buf, size, "%.*s/ncclsvcd.conf", first_of(service), service);
	else if (uid == 0)
		n = snprintf(buf, size, "%s/ncclsvcd.conf", NCCLSVC_SYSCONFDIR);
	else if (xdg)
		n = snprintf(buf, size, "%s/ncclsvc/ncclsvcd.conf", xdg);
	else if (home)
		n = snprintf(buf, size, "%s/.config/ncclsvc/ncclsvcd.conf", home);
	else
		return -1;
	return n >= 0 && (size_t)n < size ? 0 : -1;
}

int paths_check_socket(const char *path, char *why, size_t why_size)
{
	size_t n = strlen(path);

	if (path[0] != '/') {
		snprintf(why, why_size, "'%.64s' is not an absolute path", path);
		return -1;
	}
	if (path[n - 1] == '/') {
		snprintf(why, why_size, "'%.64s' is a directory, not a socket", path);
		return -1;
	}
	if (n > SUN_PATH_MAX) {
		snprintf(why, why_size,
			 "the path has %zu bytes, but a socket's path can have at most %zu: choose "
			 "a shorter one ('%.32s...')",
			 n, SUN_PATH_MAX, path);
		return -1;
	}
	return 0;
}

/* False: the directory is the root or working directory, or its name is too long. */
static bool directory_of(const char *socket, char dir[PATH_MAX])
{
	const char *slash = strrchr(socket, '/');
	if (!slash || slash == socket || slash - socket >= PATH_MAX)
		return false;
	memcpy(dir, socket, (size_t)(slash - socket));
	dir[slash - socket] = '\0';
	return true;
}

int paths_make_socket_dir(const char *socket, mode_t mode)
{
	char dir[PATH_MAX];
	struct stat st;

	if (!directory_of(socket, dir) || !mkdir(dir, mode))
		return 0;
	if (errno != EEXIST)
		return -errno;
	if (stat(dir, &st))
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

bool paths_socket_dir_shared(const char *socket)
{
	char dir[PATH_MAX];
	struct stat st;

	if (!directory_of(socket, dir) || stat(dir, &st))
		return false;
	/* Root may be configured to serve from a user's directory. */
	const bool foreign = st.st_uid != geteuid() && st.st_uid && geteuid();
	return foreign || st.st_mode & S_IWOTH;
}
