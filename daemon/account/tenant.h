/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant: a user and the unit that the user's process runs in, such as a job, a pod or a login.
 * Quotas, memory and communicators belong to tenants, since all pods of a node may run as one user.
 */
#ifndef ACCOUNT_TENANT_H
#define ACCOUNT_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/ncclsvc_types.h"

#define TENANT_UNIT_BYTES 256
#define TENANT_TEXT_BYTES (NCCLSVC_JOB_BYTES + 16)

/* A key: zeros follow the text. */
struct tenant {
	uint32_t uid;
	uint32_t confined; /* 1: the unit is a pod or container without the daemon, or not known */
	char unit[TENANT_UNIT_BYTES]; /* path of a control group; empty: the user alone */
};

/* True if a process of this tenant may see and end the other tenant's work. Users may do that in
 * all their tenants. Processes in a pod or container may do it only there, since all pods of a node
 * may run as one user, often as root. */
bool tenant_may(const struct tenant *t, const struct tenant *other);

/* The tenant of a process, given the text of its /proc/PID/cgroup. A unit is a control group that
 * only an administrator, or a service acting for one, can create; the groups inside it, which its
 * processes may create, belong to the same unit. So no user gets a second share by creating groups.
 * A path that does not fit is cut. */
void tenant_of_text(uint32_t uid, const char *text, struct tenant *t);
/* The tenant of the process at the other end of the connection, and the name of its control group
 * (svc_cgroup_name). If /proc does not show the process: the user alone, confined, since it may be
 * in any pod, and an empty name. A process that changes its control group afterwards stays in its
 * tenant. */
void tenant_of_peer(int fd, int32_t pid, uint32_t uid, struct tenant *t,
		    char cgroup[NCCLSVC_JOB_BYTES]);

/* True if the daemon itself belongs to this tenant of a peer. */
bool tenant_is_own(const struct tenant *t);

/* The unit's name for people: "job_12", "pod UID", a service; empty without a unit. Printable
 * ASCII, padded with zeros. Returns name. */
char *tenant_name(const struct tenant *t, char name[NCCLSVC_JOB_BYTES]);
/* "1000 (job_12)"; "1000" without a unit, and in the user's own logins. Returns text. */
char *tenant_text(const struct tenant *t, char text[TENANT_TEXT_BYTES]);

#endif
