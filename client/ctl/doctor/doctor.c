/* SPDX-License-Identifier: Apache-2.0
 * The daemon, its socket, and this process's limits. */
#include "doctor.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define NOFILE_LOW  1024
#define SHM_LOW	    (UINT64_C(256) << 20)
#define MEMLOCK_LOW (UINT64_C(64) << 20)

static void judge_socket(const struct doctor_facts *f, struct doctor_report *r)
{
	if (f->connected)
		return;
	switch (f->socket_error) {
	case 0:
		break;
	case ENOENT:
		doctor_say(r, "socket", DOCTOR_PROBLEM,
			   "There is no %s: no daemon has run there. Start one with `systemctl "
			   "start ncclsvcd.socket` or `ncclsvcd`, or name its socket with --socket "
			   "or NCCLSVC_SOCKET. In a container, mount the socket.",
			   f->socket);
		return;
	case EACCES:
		doctor_say(r, "socket", DOCTOR_PROBLEM,
			   "User %u has no access to the directory of %s: ask whoever runs the "
			   "daemon for access.",
			   f->uid, f->socket);
		return;
	default:
		doctor_say(r, "socket", DOCTOR_PROBLEM, "Cannot examine %s: %s.", f->socket,
			   strerror(f->socket_error));
		return;
	}
	if ((f->socket_mode & S_IFMT) != S_IFSOCK)
		doctor_say(r, "socket", DOCTOR_PROBLEM,
			   "%s is not a socket: name the daemon's socket with --socket or "
			   "NCCLSVC_SOCKET.",
			   f->socket);
	else if (!f->socket_writable)
		doctor_say(r, "socket", DOCTOR_PROBLEM,
			   "User %u has no access to %s (mode %04o, user %u, group %u): join that "
			   "group (usermod -aG), or set access in ncclsvcd.conf and the socket's "
			   "mode.",
			   f->uid, f->socket, (unsigned)f->socket_mode & 07777, f->socket_uid,
			   f->socket_gid);
}

static void judge_daemon(const struct doctor_facts *f, struct doctor_report *r)
{
	const ncclsvc_daemon_info *d = &f->daemon;
	if (!f->connected) {
		doctor_say(r, "daemon", DOCTOR_PROBLEM, "Cannot use the daemon: %s.",
			   f->daemon_text);
		return;
	}
	if (strncmp(d->version, f->library, sizeof(d->version)))
		doctor_say(r, "daemon", DOCTOR_NOTE,
			   "ncclsvcd %s (pid %d, uid %u) answers; this library is %s. They work "
			   "together, because they share a protocol version; restart the daemon "
			   "after an upgrade.",
			   d->version, d->pid, d->uid, f->library);
	else
		doctor_say(r, "daemon", DOCTOR_OK, "ncclsvcd %s (pid %d, uid %u) answers.",
			   d->version, d->pid, d->uid);
	if (d->draining == NCCLSVC_DRAINED)
		doctor_say(r, "daemon", DOCTOR_WARNING,
			   "It was drained, and takes no new jobs until `ncclsvc-ctl resume`.");
	else if (d->draining)
		doctor_say(r, "daemon", DOCTOR_WARNING,
			   "It is draining: it was asked to end, and takes no new work.");
	if (d->sessions >= d->sessions_max)
		doctor_say(r, "daemon", DOCTOR_WARNING,
			   "It has reached its limit of %u sessions: raise sessions_max.",
			   d->sessions);
}

static void judge_limits(const struct doctor_facts *f, struct doctor_report *r)
{
	bool gpus = doctor_gpus_matter(f);
	if (f->nofile < NOFILE_LOW)
		doctor_say(
			r, "files", DOCTOR_WARNING,
			"This process may open only %llu files (RLIMIT_NOFILE), and frameworks and "
			"the driver use hundreds: raise the limit with `ulimit -n` to %d or more.",
			(unsigned long long)f->nofile, NOFILE_LOW);
	else
		doctor_say(r, "files", DOCTOR_OK,
			   "This process may open enough files (RLIMIT_NOFILE).");
	if (f->memlock < MEMLOCK_LOW && gpus)
		doctor_say(r, "memlock", DOCTOR_NOTE,
			   "This process may lock %llu KiB of memory (RLIMIT_MEMLOCK). The library "
			   "needs one page, but programs that pin more (RDMA, pinned loaders) may "
			   "fail: use `ulimit -l unlimited`, or LimitMEMLOCK= in the service.",
			   (unsigned long long)f->memlock >> 10);
	else
		doctor_say(r, "memlock", DOCTOR_OK,
			   "This process may lock enough memory (RLIMIT_MEMLOCK).");
	if (f->shm_error)
		doctor_say(r, "shm", gpus ? DOCTOR_WARNING : DOCTOR_NOTE,
			   "Cannot use /dev/shm: %s. The daemon's NCCL and the driver need it on "
			   "their side; mount a tmpfs there.",
			   strerror(f->shm_error));
	else if (f->shm_bytes < SHM_LOW)
		doctor_say(r, "shm", gpus ? DOCTOR_WARNING : DOCTOR_NOTE,
			   "/dev/shm has only %llu MiB. NCCL and MPS put their shared memory "
			   "there; in a container, give it 1 GiB (--shm-size).",
			   (unsigned long long)f->shm_bytes >> 20);
	else
		doctor_say(r, "shm", DOCTOR_OK, "/dev/shm is large enough.");
}

void doctor_judge(const struct doctor_facts *f, struct doctor_report *r)
{
	*r = (struct doctor_report){0};
	judge_socket(f, r);
	judge_daemon(f, r);
	doctor_judge_gpus(f, r);
	doctor_judge_mps(f, r);
	judge_limits(f, r);
}
