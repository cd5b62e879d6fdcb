/* SPDX-License-Identifier: Apache-2.0
 * The text is another's: users name their own groups. Every part is bounded and made printable. */
#include "cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "names.h"

#define TEXT_BYTES   4096
#define HEX_SHORT    12 /* of a container's id, as docker shows it */
#define HEX_AT_LEAST 32

/* A part of a path, without its end. */
struct part {
	const char *at;
	size_t n;
};

/* The unified hierarchy's line; without it, systemd's own; else the first. */
static struct part path_of(const char *text)
{
	struct part first = {"", 0}, systemd = {"", 0};
	while (*text) {
		const size_t n = strcspn(text, "\n");
		const char *groups = memchr(text, ':', n);
		const char *path =
			groups ? memchr(groups + 1, ':', n - (size_t)(groups + 1 - text)) : NULL;
		if (path) {
			const struct part p = {path + 1, n - (size_t)(path + 1 - text)};
			if (path == groups + 1 && p.n > 1)
				return p;
			if (!strncmp(groups, ":name=systemd:", 14))
				systemd = p;
			if (!first.n)
				first = p;
		}
		text += n + (text[n] == '\n');
	}
	return systemd.n > 1 ? systemd : first;
}

/* The part that follows; n is 0 at the end. */
static struct part next_part(struct part *path)
{
	while (path->n && *path->at == '/')
		path->at++, path->n--;
	struct part p = {path->at, 0};
	while (p.n < path->n && p.at[p.n] != '/')
		p.n++;
	path->at += p.n;
	path->n -= p.n;
	return p;
}

static bool begins(struct part p, const char *with)
{
	return p.n >= strlen(with) && !memcmp(p.at, with, strlen(with));
}

static struct part without(struct part p, const char *end)
{
	const size_t n = strlen(end);
	if (p.n > n && !memcmp(p.at + p.n - n, end, n))
		p.n -= n;
	return p;
}

/* Kubernetes: kubepods-burstable-podUID.slice, with '_' for '-', or podUID. n is 0: it is none. */
static struct part pod_of(struct part p)
{
	p = without(p, ".slice");
	for (size_t i = 0; i + 4 <= p.n; i++)
		if (!memcmp(p.at + i, "pod", 3) && (!i || p.at[i - 1] == '-'))
			return (struct part){p.at + i + 3, p.n - i - 3};
	return (struct part){p.at, 0};
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* docker-0123...ef.scope: the id's beginning is enough. */
static struct part shorter(struct part p)
{
	const struct part s = without(p, ".scope");
	size_t hex = 0;
	while (hex < s.n && is_hex(s.at[s.n - 1 - hex]))
		hex++;
	return hex >= HEX_AT_LEAST ? (struct part){s.at, s.n - hex + HEX_SHORT} : p;
}

/* Where the process stands within its job, session or container: not what it belongs to. */
static bool is_detail(struct part p)
{
	return (p.n == 1 && *p.at == '.') || (p.n == 2 && begins(p, "..")) ||
	       (p.n == 4 && begins(p, "user")) || begins(p, "task_");
}

char *svc_cgroup_name(const char *text, char name[NCCLSVC_JOB_BYTES])
{
	char found[TEXT_BYTES] = "";
	struct part path = path_of(text), p, job = {"", 0}, last = {"", 0};
	bool kubernetes = false;
	while ((p = next_part(&path)).n) {
		const struct part pod = pod_of(p);
		kubernetes |= begins(p, "kubepods");
		if (begins(p, "job_"))
			job = p;
		if (kubernetes && pod.n) {
			snprintf(found, sizeof(found), "pod %.*s", (int)pod.n, pod.at);
			for (char *c = found; *c; c++)
				*c = *c == '_' ? '-' : *c;
		} else if (job.n && begins(p, "step_")) {
			snprintf(found, sizeof(found), "%.*s/%.*s", (int)job.n, job.at, (int)p.n,
				 p.at);
		}
		if (!is_detail(p))
			last = shorter(p);
	}
	if (!found[0])
		snprintf(found, sizeof(found), "%.*s", (int)last.n, last.at);
	return svc_label_copy(name, NCCLSVC_JOB_BYTES, found);
}

char *svc_cgroup_of(pid_t pid, char name[NCCLSVC_JOB_BYTES])
{
	char path[32], text[TEXT_BYTES];
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	const int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return svc_cgroup_name(text, name);
}
