/* SPDX-License-Identifier: Apache-2.0
 * MPS: whether trainers and workers use the same server, and the consequences. */
#include <stdlib.h>
#include <string.h>

#include "doctor.h"
#include "proto/abi/cuda_connections.h"

#define TRADE_WITHOUT                                                                              \
	"kernels of trainers and of the daemon take turns on the GPU, so communication does not "  \
	"overlap with compute: a step of 19.5 ms with 5 ms of AllReduce beside it took 28 to 29 "  \
	"ms, against 21 to 22 ms with MPS, or with NCCL in the trainer. In return, a trainer "     \
	"that faults or is killed affects no other process."
#define TRADE_WITH                                                                                 \
	"communication overlaps with compute as with NCCL in the trainer. The price: a trainer "   \
	"that is killed inside a kernel also destroys the worker's context on that GPU: tasks "    \
	"there end with WORKER_LOST, and the worker is replaced in 2 to 4 s."

#define ASKED_FOR CUDA_CONNECTIONS_VARIABLE "=" CUDA_CONNECTIONS_TEXT(CUDA_CONNECTIONS_MAX)

static void judge_own(const struct doctor_facts *f, struct doctor_report *r)
{
	if (f->mps.state == MPS_STALE)
		doctor_say(r, "mps", DOCTOR_NOTE,
			   "%s/control is the socket of an MPS control daemon that has ended, so "
			   "MPS is not running.",
			   f->mps.directory);
	else if (f->mps.state == MPS_REFUSED)
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "User %u may not connect to the MPS control daemon at %s: its processes "
			   "use the GPUs without MPS, or not at all. Open the directory, or set "
			   "CUDA_MPS_PIPE_DIRECTORY to one that is open.",
			   f->uid, f->mps.directory);
}

/* The daemon told this process of its MPS, or the user did. */
static bool is_told(const struct doctor_facts *f)
{
	return f->mps_chosen || !strcmp(f->mps.directory, f->daemon.mps_text);
}

/* The MPS of the daemon's workers, and how a process gets to use it. */
static void judge_daemons(const struct doctor_facts *f, bool shared, struct doctor_report *r)
{
	const ncclsvc_daemon_info *d = &f->daemon;
	if (d->mps == NCCLSVC_MPS_NOBODY)
		doctor_say(r, "mps",
			   strcmp(d->mps_text, "mps = off") != 0 ? DOCTOR_WARNING : DOCTOR_NOTE,
			   "The daemon's workers do not use MPS: %s (mps in ncclsvcd.conf(5)).",
			   d->mps_text);
	else if (!shared && !is_told(f))
		doctor_say(
			r, "mps", DOCTOR_NOTE,
			"The daemon's workers use MPS, which is for its own tenant (user %u): this "
			"process belongs to another, and does not use it. The direct transport "
			"needs no MPS; what runs on NCCL takes turns with compute (ncclsvcd(8), "
			"GPUS).",
			d->uid);
	else if (f->mps_chosen && strcmp(f->mps_chosen, d->mps_text) != 0)
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "CUDA_MPS_PIPE_DIRECTORY is %s, but the workers use the MPS in %s: "
			   "unset it, because the library sets it itself.",
			   f->mps_chosen, d->mps_text);
	else
		doctor_say(r, "mps", DOCTOR_OK,
			   "The daemon's workers use MPS, and there is nothing to set: a process "
			   "uses it too if it preloads the drop-in, or opens a session before it "
			   "initializes CUDA. For other processes, set CUDA_MPS_PIPE_DIRECTORY=%s.",
			   d->mps_text);
}

static void judge_device(const struct doctor_facts *f, const ncclsvc_device_info *d,
			 const struct doctor_gpu *g, bool *explained, struct doctor_report *r)
{
	bool here = g->mps == NCCLSVC_MPS_ACTIVE, there = d->mps == NCCLSVC_MPS_ACTIVE;
	if (d->mps == NCCLSVC_MPS_UNKNOWN) {
		doctor_say(r, "mps", DOCTOR_NOTE,
			   "It is not known whether the worker of device %d uses MPS.", d->device);
	} else if (!here && !there) {
		doctor_say(r, "mps", DOCTOR_NOTE, "Device %d, without MPS%s%s", d->device,
			   *explained ? ": as above." : ": ", *explained ? "" : TRADE_WITHOUT);
		*explained = true;
	} else if (here && there && g->mps_server == d->mps_server) {
		doctor_say(r, "mps", DOCTOR_OK,
			   "Device %d: this process and the worker share one MPS server%s%s",
			   d->device, *explained ? ": as above." : ": ",
			   *explained ? "" : TRADE_WITH);
		*explained = true;
	} else if (here && there) {
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "Device %d: this process and the worker use different MPS servers, "
			   "which take turns on the GPU.",
			   d->device);
	} else if (there) {
		doctor_say(r, "mps", is_told(f) ? DOCTOR_WARNING : DOCTOR_NOTE,
			   "Device %d: the worker uses MPS but this process does not, so they take "
			   "turns on the GPU.",
			   d->device);
	} else {
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "Device %d: this process uses MPS but the worker does not, so they take "
			   "turns on the GPU. %s",
			   d->device,
			   f->mps_chosen
				   ? "Unset CUDA_MPS_PIPE_DIRECTORY, or set mps in "
				     "ncclsvcd.conf(5) to that directory and restart the daemon."
				   : "The worker was started before MPS: restart the daemon when "
				     "it is idle.");
	}
}

static bool uses_mps(const struct doctor_facts *f)
{
	for (int i = 0; i < f->driver.ngpus; i++)
		if (f->driver.gpus[i].mps == NCCLSVC_MPS_ACTIVE)
			return true;
	return false;
}

/* Each stream that waits for a task holds one of the process's connections to its GPU. */
static void judge_connections(const struct doctor_facts *f, struct doctor_report *r)
{
	const bool mps = uses_mps(f);
	const int set = f->connections ? atoi(f->connections) : 0;
	const int n = set > 0 ? set : mps ? CUDA_CONNECTIONS_MPS : CUDA_CONNECTIONS_DEFAULT;
	if (n >= CUDA_CONNECTIONS_DEFAULT) {
		doctor_say(r, "connections", DOCTOR_OK,
			   "%d streams of a process can wait for tasks without blocking others.",
			   n > CUDA_CONNECTIONS_MAX ? CUDA_CONNECTIONS_MAX : n);
		return;
	}
	doctor_say(r, "connections", DOCTOR_WARNING,
		   "%s%s: when %d of a process's streams wait for tasks, all others are blocked; "
		   "then compute does not overlap with communication, and ranks may wait for each "
		   "other. Set " ASKED_FOR
		   " for the trainers (the drop-in libnccl.so.2, and a session that selects MPS "
		   "for its process, set it if it is not set).",
		   set > 0 ? CUDA_CONNECTIONS_VARIABLE "=" : CUDA_CONNECTIONS_VARIABLE,
		   set > 0 ? f->connections : " is not set, and this process uses MPS", n);
}

static bool shares(const struct doctor_facts *f, const ncclsvc_device_info *d)
{
	const int gpu = doctor_find_gpu(f, d);
	return gpu >= 0 && d->mps == NCCLSVC_MPS_ACTIVE &&
	       f->driver.gpus[gpu].mps == NCCLSVC_MPS_ACTIVE &&
	       f->driver.gpus[gpu].mps_server == d->mps_server;
}

void doctor_judge_mps(const struct doctor_facts *f, struct doctor_report *r)
{
	bool explained = false, shared = false;
	if (!doctor_gpus_matter(f))
		return;
	judge_own(f, r);
	judge_connections(f, r);
	for (size_t i = 0; i < f->ndevices; i++)
		shared |= shares(f, &f->devices[i]);
	if (f->connected && f->ndevices)
		judge_daemons(f, shared, r);
	for (size_t i = 0; i < f->ndevices; i++) {
		const int gpu = doctor_find_gpu(f, &f->devices[i]);
		if (gpu >= 0)
			judge_device(f, &f->devices[i], &f->driver.gpus[gpu], &explained, r);
	}
	if (shared && f->uid != f->daemon.uid)
		doctor_say(r, "mps", DOCTOR_WARNING,
			   "This process's user (%u) and the daemon's (%u) share an MPS server: a "
			   "fault of one ends the other's CUDA contexts. Unset "
			   "CUDA_MPS_PIPE_DIRECTORY, and give each user an MPS of its own.",
			   f->uid, f->daemon.uid);
}
