/* SPDX-License-Identifier: Apache-2.0 */
#include "trust.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "error.h"

#define NO_USER ((uid_t)-1)

static uid_t find_user(const char *name)
{
	char buffer[4096]; /* a user with a longer entry can be given as a number */
	struct passwd entry, *found = NULL;
	const int error = getpwnam_r(name, &entry, buffer, sizeof(buffer), &found);
	return !error && found ? found->pw_uid : NO_USER;
}

uid_t trust_service(const char *variable)
{
	if (!variable)
		return find_user(TRUST_SERVICE_USER);
	if (!*variable || variable[strspn(variable, "0123456789")])
		return find_user(variable);
	const unsigned long long uid = strtoull(variable, NULL, 10);
	return uid < NO_USER ? (uid_t)uid : NO_USER;
}

bool trust_allows(uid_t peer, uid_t self, uid_t service)
{
	if (peer == NO_USER)
		return false;
	if (peer == service)
		return true;
	/* The "unmapped" uid may be any user, even if this process has it too. */
	return peer != TRUST_UNMAPPED_UID && (peer == self || peer == 0);
}

static ncclsvc_result refuse(uid_t peer, const char *path, const char *variable, uid_t service)
{
	if (peer == TRUST_UNMAPPED_UID)
		return error_set(
			NCCLSVC_PERMISSION,
			"the daemon at %s runs as a user that is not mapped in this user "
			"namespace, so it is not trusted: run this process outside the namespace, "
			"or map that user; if no other user can replace the socket, set %s=%u",
			path, TRUST_VARIABLE, peer);
	return error_set(NCCLSVC_PERMISSION,
			 "uid %u listens at %s and is not trusted: this process trusts its own "
			 "user (uid %u), root, and %s%s%s. If uid %u runs your ncclsvcd, set %s=%u",
			 peer, path, geteuid(), variable ? TRUST_VARIABLE "=" : "the user ",
			 variable ? variable : TRUST_SERVICE_USER,
			 service == NO_USER ? " (there is no such user)" : "", peer, TRUST_VARIABLE,
			 peer);
}

/* The kernel reports the credentials of the process that called listen. With socket activation that
 * is systemd: root, or with `systemctl --user` the user. */
ncclsvc_result trust_check(int sock, const char *path)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return error_set(NCCLSVC_SYSTEM, "cannot determine who listens at %s: %m", path);
	/* Try without the system's user database first, which may be slow. */
	if (trust_allows(peer.uid, geteuid(), NO_USER))
		return NCCLSVC_OK;
	const char *variable = secure_getenv(TRUST_VARIABLE);
	if (variable && !*variable)
		variable = NULL;
	const uid_t service = trust_service(variable);
	if (trust_allows(peer.uid, geteuid(), service))
		return NCCLSVC_OK;
	return refuse(peer.uid, path, variable, service);
}
