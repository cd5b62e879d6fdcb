/* SPDX-License-Identifier: Apache-2.0 */
#include "socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/names.h"

bool socket_choose(const char *path, char *to, size_t size)
{
	char user[sizeof(((struct sockaddr_un *)0)->sun_path)];
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	if (!path)
		path = getenv("NCCLSVC_SOCKET");
	if (path && !*path)
		path = NULL;
	if (!path && runtime && *runtime) {
		int n = snprintf(user, sizeof(user), "%s/ncclsvc/ncclsvcd.sock", runtime);
		if (n > 0 && (size_t)n < sizeof(user) && !access(user, F_OK))
			path = user;
	}
	int n = snprintf(to, size, "%s", path ? path : "/run/ncclsvc/ncclsvcd.sock");
	return n >= 0 && (size_t)n < size;
}

bool socket_choose_admin(const char *path, char *to, size_t size)
{
	char jobs[sizeof(((struct sockaddr_un *)0)->sun_path)];
	return socket_choose(path, jobs, sizeof(jobs)) && svc_admin_path(jobs, to, size);
}
