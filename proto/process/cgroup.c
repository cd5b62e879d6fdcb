/* SPDX-License-Identifier: Apache-2.0
 * The text is another's: users name their own groups. Every part is bounded and made printable. */
#include "cgroup.h"

#include <stdio.h>
#include <string.h>

#include "fdio.h"
#include "names.h"

#define TEXT_BYTES   4096
#define HEX_SHORT    12 /* of a container's id, as docker shows it */
#define HEX_AT_LEAST 32

/* A line, "NUMBER:CONTROLLERS:PATH": cgroups(7). No controllers: version 2's hierarchy. */
struct line {
	struct svc_cgroup_part controllers, path;
};

/* False: the text is over. A line of another form has an empty path. */
static bool next_line(const char **text, struct line *line)
{
	const size_t n = strcspn(*text, "\n");
	const char *end = *text + n, *first = memchr(*text, ':', n);
	const char *second = first ? memchr(first + 1, ':', (size_t)(end - first - 1)) : NULL;
	*line = (struct line){{"", 0}, {"", 0}};
	if (second)
		*line = (struct line){{first + 1, (size_t)(second - first - 1)},
				      {second + 1, (size_t)(end - second - 1)}};
	if (!**text)
		return false;
	*text = end + (*end == '\n');
	return true;
}

static bool is(struct svc_cgroup_part p, const char *text)
{
	return p.n == strlen(text) && !memcmp(p.at, text, p.n);
}

const char *svc_cgroup_path(const char *text, const char *controllers, int *length)
{
	struct line l;
	while (next_line(&text, &l))
		if (l.path.n && is(l.controllers, controllers)) {
			*length = (int)l.path.n;
			return l.path.at;
		}
	return NULL;
}

/* The unified hierarchy's path; without it, systemd's own; else the longest. */
static struct svc_cgroup_part path_of(const char *text)
{
	struct svc_cgroup_part longest = {"", 0}, systemd = {"", 0};
	struct line l;
	while (next_line(&text, &l)) {
		if (l.path.n > 1 && is(l.controllers, ""))
			return l.path;
		if (is(l.controllers, "name=systemd"))
			systemd = l.path;
		if (l.path.n > longest.n)
			longest = l.path;
	}
	return systemd.n > 1 ? systemd : longest;
}

const char *svc_cgroup_own(const char *text, int *length)
{
	const struct svc_cgroup_part path = path_of(text);
	*length = (int)path.n;
	return path.at;
}

struct svc_cgroup_part svc_cgroup_next(struct svc_cgroup_part *path)
{
	while (path->n && *path->at == '/')
		path->at++, path->n--;
	struct svc_cgroup_part p = {path->at, 0};
	while (p.n < path->n && p.at[p.n] != '/')
		p.n++;
	path->at += p.n;
	path->n -= p.n;
	return p;
}

static bool begins(struct svc_cgroup_part p, const char *with)
{
	return p.n >= strlen(with) && !memcmp(p.at, with, strlen(with));
}

static struct svc_cgroup_part without(struct svc_cgroup_part p, const char *end)
{
	const size_t n = strlen(end);
	if (p.n > n && !memcmp(p.at + p.n - n, end, n))
		p.n -= n;
	return p;
}

/* Kubernetes: kubepods-burstable-podUID.slice, with '_' for '-', or podUID. n is 0: it is none. */
static struct svc_cgroup_part pod_of(struct svc_cgroup_part p)
{
	p = without(p, ".slice");
	for (size_t i = 0; i + 4 <= p.n; i++)
		if (!memcmp(p.at + i, "pod", 3) && (!i || p.at[i - 1] == '-'))
			return (struct svc_cgroup_part){p.at + i + 3, p.n - i - 3};
	return (struct svc_cgroup_part){p.at, 0};
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* docker-0123...ef.scope: the id's beginning is enough. */
static struct svc_cgroup_part shorter(struct svc_cgroup_part p)
{
	const struct svc_cgroup_part s = without(p, ".scope");
	size_t hex = 0;
	while (hex < s.n && is_hex(s.at[s.n - 1 - hex]))
		hex++;
	return hex >= HEX_AT_LEAST ? (struct svc_cgroup_part){s.at, s.n - hex + HEX_SHORT} : p;
}

/* Where the process stands within its job, session or container: not what it belongs to. */
static bool is_detail(struct svc_cgroup_part p)
{
	return (p.n == 1 && *p.at == '.') || (p.n == 2 && begins(p, "..")) ||
	       (p.n == 4 && begins(p, "user")) || begins(p, "task_");
}

char *svc_cgroup_name(const char *text, char name[NCCLSVC_JOB_BYTES])
{
	char found[TEXT_BYTES] = "";
	struct svc_cgroup_part path = path_of(text), p, job = {"", 0}, last = {"", 0};
	bool kubernetes = false;
	while ((p = svc_cgroup_next(&path)).n) {
		const struct svc_cgroup_part pod = pod_of(p);
		kubernetes |= memmem(p.at, p.n, "kubepods", strlen("kubepods")) != NULL;
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
	if (pid <= 0 || !svc_read_text(path, text, sizeof(text)))
		text[0] = '\0';
	return svc_cgroup_name(text, name);
}
