/* SPDX-License-Identifier: Apache-2.0
 * Other users choose parts of the text: every part is bounded, and none is trusted to be printable.
 */
#include "tenant.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/ending.h"
#include "proto/fdio.h"
#include "proto/process/cgroup.h"

#define TEXT_BYTES   8192
#define HEX_AT_LEAST 32 /* digits of a container's id */

/* A part of a path, on the way from the root. */
struct step {
	struct svc_cgroup_part part, parent;
	bool slurm, kubernetes; /* one of the parts so far, this one included, is Slurm's, or
				   Kubernetes' */
};

static bool begins(struct svc_cgroup_part p, const char *with)
{
	return p.n >= strlen(with) && !memcmp(p.at, with, strlen(with));
}

static bool ends(struct svc_cgroup_part p, const char *with)
{
	const size_t n = strlen(with);
	return p.n > n && !memcmp(p.at + p.n - n, with, n);
}

static bool is(struct svc_cgroup_part p, const char *text)
{
	return p.n == strlen(text) && begins(p, text);
}

static bool contains(struct svc_cgroup_part p, const char *text)
{
	return memmem(p.at, p.n, text, strlen(text));
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* ---- Rules ---- */

/* Each returns how many bytes of the part belong to the unit's path, which ends with them; 0: the
 * rule does not apply. */

static size_t session(const struct step *s)
{
	return is(s->parent, "user.slice") && begins(s->part, "user-") && ends(s->part, ".slice")
		       ? s->part.n
		       : 0;
}

static size_t slurm_job(const struct step *s)
{
	return s->slurm && begins(s->part, "job_") ? s->part.n : 0;
}

/* "podUID" or "kubepods-burstable-podUID.slice"; containerd may append ":cri-containerd:ID". */
static size_t pod(const struct step *s)
{
	for (size_t i = 0; s->kubernetes && i + 3 < s->part.n; i++) {
		if (memcmp(s->part.at + i, "pod", 3) || (i && s->part.at[i - 1] != '-'))
			continue;
		const char *colon = memchr(s->part.at, ':', s->part.n);
		return colon ? (size_t)(colon - s->part.at) : s->part.n;
	}
	return 0;
}

/* "ID", "docker-ID.scope", "libpod-ID.scope". */
static size_t container(const struct step *s)
{
	const size_t end = ends(s->part, ".scope") ? s->part.n - strlen(".scope") : s->part.n;
	size_t hex = 0;
	while (hex < end && is_hex(s->part.at[end - 1 - hex]))
		hex++;
	const bool whole = hex == end || s->part.at[end - 1 - hex] == '-';
	return hex >= HEX_AT_LEAST && whole ? s->part.n : 0;
}

static size_t lxc(const struct step *s)
{
	return begins(s->part, "lxc.payload.") || is(s->parent, "lxc") ? s->part.n : 0;
}

/* The daemons of container runtimes and of Slurm run others' work below their own units. */
static bool is_runtime(struct svc_cgroup_part p)
{
	static const char *const names[] = {"containerd", "crio",    "docker", "k3s",
					    "kubelet",	  "podman",  "rke2",   "slurmd",
					    "slurmstepd", "dockerd", NULL};
	const struct svc_cgroup_part name = {
		p.at, p.n - (ends(p, ".service") ? strlen(".service") : strlen(".scope"))};
	for (const char *const *n = names; *n; n++)
		if (is(name, *n) || (ends(name, *n) && name.at[name.n - strlen(*n) - 1] == '_'))
			return true;
	return false;
}

static size_t service(const struct step *s)
{
	return ends(s->part, ".service") || ends(s->part, ".scope") ? s->part.n : 0;
}

/* The part nearest to the root comes first, and the first rule that applies to it decides: a unit
 * may contain anything, for example rootless containers in a user's logins. */
static const struct rule {
	size_t (*end)(const struct step *s);
	bool confines;
} rules[] = {
	{session, false},   /* users create groups below their slices; two terminals are one user */
	{slurm_job, false}, /* Slurm creates it; the steps of a job work together */
	{pod, true},	    /* Kubernetes creates it; the containers of a pod work together */
	{container, true},  /* Docker, Podman or containerd creates it */
	{lxc, true},	    /* it has a root user of its own, who creates groups in it */
	{service, false}, /* systemd creates services and scopes, and may let them create groups */
};

/* ---- Paths ---- */

/* The start of the path, up to the unit's end. *rule: the rule that found it; NULL: none did. */
static struct svc_cgroup_part unit_of(struct svc_cgroup_part path, const struct rule **rule)
{
	struct step s = {0};
	struct svc_cgroup_part rest = path, runtime = {path.at, 0};
	*rule = NULL;
	for (; (s.part = svc_cgroup_next(&rest)).n; s.parent = s.part) {
		s.slurm |= contains(s.part, "slurm");
		s.kubernetes |= contains(s.part, "kubepods");
		for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
			const size_t n = rules[i].end(&s);
			const struct svc_cgroup_part unit = {path.at,
							     (size_t)(s.part.at - path.at) + n};
			if (!n)
				continue;
			*rule = &rules[i];
			if (rules[i].end != service || !is_runtime(s.part))
				return unit;
			runtime = unit;
		}
	}
	return runtime.n ? runtime : path;
}

/* With cgroup v1, Slurm creates jobs' groups only in the hierarchies of its controllers. */
static bool job_of_controllers(const char *text, struct svc_cgroup_part *unit)
{
	static const char *const controllers[] = {"cpuset", "memory", "freezer", "devices"};
	for (size_t i = 0; i < sizeof(controllers) / sizeof(controllers[0]); i++) {
		int length;
		const struct rule *rule = NULL;
		const char *at = svc_cgroup_path(text, controllers[i], &length);
		if (at)
			*unit = unit_of((struct svc_cgroup_part){at, (size_t)length}, &rule);
		if (rule && rule->end == slurm_job)
			return true;
	}
	return false;
}

void tenant_of_text(uint32_t uid, const char *text, struct tenant *t)
{
	int length = 0;
	const struct rule *rule;
	const char *at = svc_cgroup_own(text, &length);
	struct svc_cgroup_part found,
		unit = unit_of((struct svc_cgroup_part){at, (size_t)length}, &rule);
	memset(t, 0, sizeof(*t));
	t->confined = rule && rule->confines;
	if (!t->confined && job_of_controllers(text, &found))
		unit = found;
	t->uid = uid;
	if (unit.n > 1) /* the root group is no unit */
		memcpy(t->unit, unit.at, unit.n < sizeof(t->unit) ? unit.n : sizeof(t->unit) - 1);
}

bool tenant_may(const struct tenant *t, const struct tenant *other)
{
	const bool same = t->confined == other->confined && !strcmp(t->unit, other->unit);
	return t->uid == other->uid && (!t->confined || same);
}

/* ---- Processes ---- */

static bool is_alive(int pidfd)
{
	return !syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) || errno == EPERM;
}

static bool is_own_unit(const struct tenant *t)
{
	static struct tenant own;
	char text[TEXT_BYTES];
	if (!own.unit[0] && svc_read_text("/proc/self/cgroup", text, sizeof(text)))
		tenant_of_text(0, text, &own);
	return !strcmp(t->unit, own.unit);
}

/* After the file was read, the pidfd shows whether the process still had the pid. */
void tenant_of_peer(int fd, int32_t pid, uint32_t uid, struct tenant *t,
		    char cgroup[NCCLSVC_JOB_BYTES])
{
	char path[32], text[TEXT_BYTES];
	const int pidfd = process_pidfd(fd, pid);
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	if (pid <= 0 || pidfd < 0 || !svc_read_text(path, text, sizeof(text)) || !is_alive(pidfd))
		text[0] = '\0';
	if (pidfd >= 0)
		close(pidfd);
	tenant_of_text(uid, text, t);
	/* A pod's process may connect and exit, and leave the socket to a child. A container that
	 * has the daemon in it is all that there is. */
	t->confined = !text[0] || (t->confined && !is_own_unit(t));
	svc_cgroup_name(text, cgroup);
}

bool tenant_is_own(const struct tenant *t)
{
	return t->uid == geteuid() && !t->confined && is_own_unit(t);
}

/* ---- For people ---- */

char *tenant_name(const struct tenant *t, char name[NCCLSVC_JOB_BYTES])
{
	char line[TENANT_UNIT_BYTES + 8];
	snprintf(line, sizeof(line), "0::%s\n", t->unit);
	return svc_cgroup_name(line, name);
}

/* The name of the user's slice says no more than the uid. */
static bool is_own_slice(const struct tenant *t, const char *name)
{
	char own[32];
	snprintf(own, sizeof(own), "user-%u.slice", t->uid);
	return !strcmp(name, own);
}

char *tenant_text(const struct tenant *t, char text[TENANT_TEXT_BYTES])
{
	char name[NCCLSVC_JOB_BYTES];
	tenant_name(t, name);
	if (name[0] && !is_own_slice(t, name))
		snprintf(text, TENANT_TEXT_BYTES, "%u (%s)", t->uid, name);
	else
		snprintf(text, TENANT_TEXT_BYTES, "%u", t->uid);
	return text;
}
