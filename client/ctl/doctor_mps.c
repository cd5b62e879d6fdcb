/* SPDX-License-Identifier: Apache-2.0
 * MPS: whether trainers and workers meet at one server, and what follows from it. */
#include <stdlib.h>
#include <string.h>

#include "cuda_connections.h"
#include "doctor.h"

#define TRADE_WITHOUT                                                                              \
	"kernels of trainers and of the daemon take turns on the GPU, so communication does not "  \
	"overlap with compute: a step of 19.5 ms with 5 ms of AllReduce beside it ended after 28 " \
	"to 29 ms, where MPS, and NCCL in the trainer, took 21 to 22 ms. For it, a trainer that "  \
	"faults or is killed harms nobody else."
#define TRADE_WITH                                                                                 \
	"communication overlaps with compute as with NCCL in the trainer. For it, a trainer that " \
	"is killed inside a kernel takes the worker's context on that GPU along: tasks there end " \
	"with WORKER_LOST, and the worker is replaced in 2 to 4 s."

#define ASKED_FOR CUDA_CONNECTIONS_VARIABLE "=" CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX)

static void judge_own(const struct doctor_facts *f, struct doctor_report *r)
{
	if (f->mps.state == MPS_STALE)
		doctor_say(
			r, "mps", DOCTOR_NOTE,
			"%s/control is the socket of an MPS control daemon that has ended: it is "
			"as if there were none.",
			f->mps.directory);
	else if (f->mps.state == MPS_REFUSED)
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "User %u may not connect to the MPS control daemon at %s: its processes "
			   "use the GPUs beside MPS, or not at all. Open the directory, or set "
			   "CUDA_MPS_PIPE_DIRECTORY to one that is open.",
			   f->uid, f->mps.directory);
}

static void judge_device(const struct doctor_facts *f, const ncclsvc_device_info *d, bool *told,
			 struct doctor_report *r)
{
	bool here = f->mps.state == MPS_RUNNING, there = d->mps == NCCLSVC_MPS_ACTIVE;
	if (d->mps == NCCLSVC_MPS_UNKNOWN) {
		doctor_say(r, "mps", DOCTOR_NOTE,
			   "Whether the worker of device %d uses MPS is not known.", d->device);
	} else if (!here && !there) {
		doctor_say(r, "mps", DOCTOR_NOTE, "Device %d, without MPS%s%s", d->device,
			   *told ? ": as above." : ": ", *told ? "" : TRADE_WITHOUT);
		*told = true;
	} else if (here && there && f->mps.server == d->mps_server) {
		doctor_say(r, "mps", DOCTOR_OK,
			   "Device %d: this process and the worker share one MPS server%s%s",
			   d->device, *told ? ": as above." : ": ", *told ? "" : TRADE_WITH);
		*told = true;
	} else if (here && there) {
		doctor_say(
			r, "mps", DOCTOR_WARNING,
			"Device %d: this process (through %s) and the worker use different MPS "
			"servers, which take turns on the GPU: set CUDA_MPS_PIPE_DIRECTORY to the "
			"same directory for both.",
			d->device, f->mps.directory);
	} else {
		doctor_say(
			r, "mps", DOCTOR_WARNING,
			"Device %d: %s uses MPS and %s does not, so they take turns on the GPU. "
			"Set CUDA_MPS_PIPE_DIRECTORY to the same directory for the daemon and the "
			"trainers (the units of systemd: /run/ncclsvc-mps), and restart the one "
			"that is without.",
			d->device, here ? "this process" : "the worker",
			here ? "the worker" : "this process");
	}
}

/* Each stream that waits for a task holds one of the process's connections to its GPU. */
static void judge_connections(const struct doctor_facts *f, struct doctor_report *r)
{
	const bool mps = f->mps.state == MPS_RUNNING;
	const int set = f->connections ? atoi(f->connections) : 0;
	const int n = set > 0 ? set : mps ? CUDA_CONNECTIONS_MPS : CUDA_CONNECTIONS_DEFAULT;
	if (n >= CUDA_CONNECTIONS_DEFAULT) {
		doctor_say(r, "connections", DOCTOR_OK,
			   "%d streams of a process may wait for tasks without holding up others.",
			   n > CUDA_CONNECTIONS_MAX ? CUDA_CONNECTIONS_MAX : n);
		return;
	}
	doctor_say(r, "connections", DOCTOR_WARNING,
		   "%s%s: when %d of a process's streams wait for tasks, all others are held up; "
		   "compute does not overlap with communication then, and ranks may wait for each "
		   "other. Set " ASKED_FOR " for the trainers (the drop-in libnccl.so.2 does so "
		   "where it is not set).",
		   set > 0 ? CUDA_CONNECTIONS_VARIABLE "=" : CUDA_CONNECTIONS_VARIABLE,
		   set > 0 ? f->connections : " is not set, and this process uses MPS", n);
}

void doctor_judge_mps(const struct doctor_facts *f, struct doctor_report *r)
{
	bool told = false, shared = false;
	if (!doctor_gpus_matter(f))
		return;
	judge_own(f, r);
	judge_connections(f, r);
	for (size_t i = 0; i < f->ndevices; i++) {
		const ncclsvc_device_info *d = &f->devices[i];
		if (doctor_find_gpu(f, d) < 0)
			continue;
		judge_device(f, d, &told, r);
		shared |= f->mps.state == MPS_RUNNING && d->mps == NCCLSVC_MPS_ACTIVE &&
			  f->mps.server == d->mps_server;
	}
	if (shared && f->uid != f->daemon.uid)
		doctor_say(
			r, "mps", DOCTOR_NOTE,
			"This process's user (%u) and the daemon's (%u) differ: MPS must have been "
			"started with -multiuser-server, as it otherwise serves one user at a "
			"time. Users are then not kept apart on the GPUs.",
			f->uid, f->daemon.uid);
}
