/* SPDX-License-Identifier: Apache-2.0 */
#include "private_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "build_config.h"
#include "child_process.h"
#include "rank_command.h"

#define GRACE_MS 8000 /* time for an orderly exit */

static struct {
	pid_t pid; /* pid of mpirun, with several nodes */
	uint32_t nodes;
	char socket[96], log[96];
} daemon_;

static bool listens(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	bool good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
	close(fd);
	return good;
}

static bool wait_until_it_listens(int timeout_ms)
{
	uint64_t end = perf_now_ns() + (uint64_t)timeout_ms * 1000000;
	int status;
	char how[96];
	char path[108];
	for (uint32_t node = 0; node < daemon_.nodes;) {
		const char *here = strstr(daemon_.socket, "%r");
		snprintf(path, sizeof(path), "%s", daemon_.socket);
		if (here)
			snprintf(path, sizeof(path), "%.*s%u%s", (int)(here - daemon_.socket),
				 daemon_.socket, node, here + 2);
		if (listens(path)) {
			node++;
			continue;
		}

		if (caught_signal())
			return false;
		if (wait_child(daemon_.pid, 0, &status)) {
			daemon_.pid = 0;
			complain("the daemon %s", describe_status(status, how, sizeof(how)));
			show_tail(daemon_.log);
			return false;
		}
		if (perf_now_ns() >= end) {
			complain("the daemon did not listen within %d s", timeout_ms / 1000);
			show_tail(daemon_.log);
			return false;
		}
		sleep_ms(5);
	}
	return true;
}

bool private_daemon_start(const struct options *o)
{
	static const char *const places[] = {"../../daemon", "../sbin", "../libexec/ncclsvc",
					     NCCLSVC_LIBEXECDIR, NULL};
	char program[PATH_MAX], ranks_text[16], nodes_text[16];
	const char *dir = private_dir();
	if (!dir || !find_program("ncclsvcd", "NCCLSVCD", places, program, sizeof(program)))
		return false;
	daemon_.nodes = o->nodes;
	snprintf(daemon_.socket, sizeof(daemon_.socket), "%s/ncclsvcd%s.sock", dir,
		 o->nodes > 1 ? "%r" : "");
	snprintf(daemon_.log, sizeof(daemon_.log), "%s/ncclsvcd.log", dir);
	/* With several nodes, the world is unused; it has at most this many ranks. */
	snprintf(ranks_text, sizeof(ranks_text), "%u", o->nodes > 1 ? 1 : o->ranks);
	snprintf(nodes_text, sizeof(nodes_text), "%u", o->nodes);
	int log = open(daemon_.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0) {
		complain("can't write %s: %s", daemon_.log, strerror(errno));
		return false;
	}
	/* Uses an empty configuration, because this machine's is for its own daemon. mpirun must
	 * stay on this machine even under Slurm, and a single daemon must ignore the launcher that
	 * started this program. */
	const char *device = o->cuda ? "cuda" : "host";
	const char *bootstrap = o->nodes > 1 ? "mpi" : "none";
	const char *argv[] = {"mpirun",
			      "--allow-run-as-root",
			      "--oversubscribe",
			      "--bind-to",
			      "none",
			      "--mca",
			      "ras",
			      "^slurm",
			      "-n",
			      nodes_text,
			      program,
			      "--config",
			      "/dev/null",
			      "--socket",
			      daemon_.socket,
			      "--device",
			      device,
			      "--ranks",
			      ranks_text,
			      "--log-target",
			      "stderr",
			      "--cluster-bootstrap",
			      bootstrap,
			      NULL};
	size_t first = o->nodes > 1 ? 0 : 10;
	daemon_.pid = spawn((char *const *)argv + first, log);
	close(log);
	if (daemon_.pid < 0) {
		complain("can't run %s: %s", argv[first], strerror(errno));
		daemon_.pid = 0;
		return false;
	}
	return wait_until_it_listens(o->timeout_ms);
}

const char *private_daemon_socket(void)
{
	return daemon_.pid > 0 ? daemon_.socket : NULL;
}

bool private_daemon_stop(void)
{
	int status;
	char how[96];
	if (daemon_.pid <= 0)
		return true;
	bool crashed = wait_child(daemon_.pid, 0, &status);
	if (crashed) {
		complain("the daemon %s during the run", describe_status(status, how, sizeof(how)));
		show_tail(daemon_.log);
	} else {
		stop_child(daemon_.pid, true, GRACE_MS);
	}
	daemon_.pid = 0;
	return !crashed;
}
