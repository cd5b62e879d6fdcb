/* SPDX-License-Identifier: Apache-2.0
 * Judges the driver, NCCL, and the GPUs of both sides. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"
#include "proto/abi/nccl_abi.h"
#include "proto/names.h"

#define DRIVER_NEEDED 12000

bool doctor_gpus_matter(const struct doctor_facts *f)
{
	return f->ndevices || f->driver.ngpus;
}

int doctor_find_gpu(const struct doctor_facts *f, const ncclsvc_device_info *d)
{
	for (int i = 0; i < f->driver.ngpus; i++)
		if (!memcmp(f->driver.gpus[i].uuid, d->uuid, sizeof(d->uuid)))
			return i;
	return -1;
}

static const ncclsvc_device_info *find_device(const struct doctor_facts *f,
					      const struct doctor_gpu *g)
{
	for (size_t i = 0; i < f->ndevices; i++)
		if (!memcmp(f->devices[i].uuid, g->uuid, sizeof(g->uuid)))
			return &f->devices[i];
	return NULL;
}

static void judge_files(const struct doctor_facts *f, struct doctor_report *r)
{
	bool uvm = false, control = false, kept = f->ndevices && !f->driver.ngpus;
	size_t bad = 0;
	for (size_t i = 0; i < f->nfiles; i++) {
		const struct doctor_file *x = &f->files[i];
		uvm |= !strcmp(x->path, "/dev/nvidia-uvm");
		control |= !strcmp(x->path, "/dev/nvidiactl");
		if (!x->error)
			continue;
		bad++;
		doctor_say(r, "device-files", DOCTOR_PROBLEM, "Cannot open %s: %s. %s", x->path,
			   strerror(x->error),
			   x->error == EPERM ? "A control group forbids it: check DeviceAllow= of "
					       "the service, or the container's device list."
					     : "Give this user access: the mode is set by the "
					       "driver's NVreg_DeviceFileMode, or by a udev rule.");
	}
	if (!f->nfiles && f->driver.ngpus)
		return; /* a driver that needs no device node */
	if (!f->nfiles)
		doctor_say(r, "device-files", kept ? DOCTOR_PROBLEM : DOCTOR_NOTE,
			   "There is no /dev/nvidia*: %s",
			   kept ? "this process has no access to the daemon's GPUs. In a "
				  "container, pass them in; in a service, set PrivateDevices=no."
				: "this machine has no NVIDIA GPU, its kernel module is not "
				  "loaded, or this container was started without it.");
	else if (!uvm || !control)
		doctor_say(r, "device-files", DOCTOR_WARNING,
			   "CUDA needs %s, which is missing: load it with `nvidia-modprobe -u -c "
			   "0`, or run nvidia-persistenced.",
			   uvm ? "/dev/nvidiactl" : "/dev/nvidia-uvm");
	else if (!bad)
		doctor_say(r, "device-files", DOCTOR_OK,
			   "%zu device files of /dev/nvidia* can be opened.", f->nfiles);
}

static bool is_node_of_gpu(const struct doctor_file *x)
{
	static const char prefix[] = "/dev/nvidia";
	const char *number = x->path + sizeof(prefix) - 1;
	return !strncmp(x->path, prefix, sizeof(prefix) - 1) && *number &&
	       !number[strspn(number, "0123456789")];
}

/* CUDA cannot open memory of a GPU whose device node the process lacks. */
static void judge_nodes(const struct doctor_facts *f, struct doctor_report *r)
{
	size_t nodes = 0;
	for (size_t i = 0; i < f->nfiles; i++)
		nodes += is_node_of_gpu(&f->files[i]) && !f->files[i].error;
	if (nodes && nodes < f->ndevices)
		doctor_say(r, "device-files", DOCTOR_NOTE,
			   "This process has the device nodes of only %zu of %zu GPUs. "
			   "Communicators with the others run on NCCL in the daemon's workers, "
			   "without the direct transport, so small operations are slower.",
			   nodes, f->ndevices);
}

static void judge_visible(const struct doctor_facts *f, struct doctor_report *r)
{
	if (!f->visible)
		return;
	if (!*f->visible || !strcmp(f->visible, "-1") || !strcmp(f->visible, "NoDevFiles"))
		doctor_say(r, "visible", f->ndevices ? DOCTOR_WARNING : DOCTOR_NOTE,
			   "CUDA_VISIBLE_DEVICES is \"%s\": it hides every GPU from this process.",
			   f->visible);
	else
		doctor_say(
			r, "visible", DOCTOR_OK,
			"CUDA_VISIBLE_DEVICES is \"%s\": this process numbers only these GPUs. The "
			"daemon numbers its devices separately, and they are matched by UUID.",
			f->visible);
}

static bool judge_end(const struct doctor_facts *f, struct doctor_report *r)
{
	switch (f->end) {
	case DOCTOR_ENDED:
		return true;
	case DOCTOR_NOT_RUN:
		doctor_say(r, "driver", DOCTOR_WARNING,
			   "Cannot start the process that tests the driver: check free memory, and "
			   "whether /proc is mounted.");
		return false;
	case DOCTOR_CRASHED:
		doctor_say(r, "driver", DOCTOR_PROBLEM,
			   "A process that only starts the driver was killed by signal %d: the "
			   "driver and libcuda.so.1 may have different versions; look for Xid "
			   "lines in dmesg.",
			   f->end_signal);
		return false;
	case DOCTOR_HUNG:
		break;
	}
	if (f->mps.state == MPS_RUNNING)
		doctor_say(
			r, "driver", DOCTOR_PROBLEM,
			"The driver did not start within 10 s, and there is an MPS control daemon "
			"at %s. MPS serves one user at a time: this user waits while another's "
			"processes run, such as the daemon's workers (uid here: %u, the daemon's: "
			"%u). Run them as one user, or give each user an MPS of its own.",
			f->mps.directory, f->uid, f->daemon.uid);
	else
		doctor_say(r, "driver", DOCTOR_PROBLEM,
			   "The driver did not start within 10 s: a GPU may hang. Look for Xid "
			   "lines in dmesg, and run `nvidia-smi`.");
	return false;
}

/* False: there is no usable driver. */
static bool judge_driver(const struct doctor_facts *f, struct doctor_report *r)
{
	const struct doctor_driver *d = &f->driver;
	enum doctor_level level = f->ndevices ? DOCTOR_PROBLEM : DOCTOR_NOTE;
	bool ended = judge_end(f, r);
	if (!ended && !d->listed)
		return false;
	if (!d->cuda_open) {
		doctor_say(r, "driver", level, "%s. %s", d->cuda_text,
			   f->ndevices
				   ? "Without it, this process can only use host communicators: "
				     "install the driver's libcuda1, or pass it into the container."
				   : "Host communicators do not need it.");
		return false;
	}
	if (d->cuda_version && d->cuda_version < DRIVER_NEEDED) {
		doctor_say(
			r, "driver", DOCTOR_PROBLEM,
			"The driver supports CUDA %d.%d, but 12.0 is needed: install a newer one.",
			d->cuda_version / 1000, d->cuda_version % 1000 / 10);
		return false;
	}
	if (!d->cuda_init || !d->listed) {
		doctor_say(r, "driver", level, "libcuda.so.1 is installed, but does not start: %s.",
			   d->cuda_text[0] ? d->cuda_text : "unknown error");
		return false;
	}
	doctor_say(r, "driver", DOCTOR_OK, "The driver supports CUDA %d.%d (12.0 is needed).",
		   d->cuda_version / 1000, d->cuda_version % 1000 / 10);
	return true;
}

static void judge_nccl(const struct doctor_facts *f, struct doctor_report *r)
{
	const struct doctor_driver *d = &f->driver;
	if (f->end != DOCTOR_ENDED || (!d->cuda_open && !f->ndevices))
		return;
	if (!d->nccl_open)
		doctor_say(r, "nccl", DOCTOR_NOTE,
			   "%s. Trainers do not need it; the daemon does, and searches its own "
			   "library path.",
			   d->nccl_text);
	else if (d->nccl_version < NCCL_VERSION_NEEDED)
		doctor_say(r, "nccl", f->ndevices ? DOCTOR_NOTE : DOCTOR_WARNING,
			   "libnccl.so.2 here has version %d.%d.%d; a daemon needs %d.%d.",
			   d->nccl_version / 10000, d->nccl_version / 100 % 100,
			   d->nccl_version % 100, NCCL_VERSION_NEEDED / 10000,
			   NCCL_VERSION_NEEDED / 100 % 100);
	else
		doctor_say(r, "nccl", DOCTOR_OK, "libnccl.so.2 here has version %d.%d.%d.",
			   d->nccl_version / 10000, d->nccl_version / 100 % 100,
			   d->nccl_version % 100);
}

static void judge_daemons(const struct doctor_facts *f, struct doctor_report *r)
{
	if (!f->connected)
		return;
	if (!f->ndevices && f->driver.ngpus)
		doctor_say(r, "devices", DOCTOR_WARNING,
			   "The daemon uses no GPU, but this process sees %d. The start of the "
			   "daemon's log says why (\"no GPU is used\"): device = host, no "
			   "libcuda.so.1 in its library path, or no access to /dev/nvidia*.",
			   f->driver.ngpus);
	else if (!f->ndevices)
		doctor_say(
			r, "devices", DOCTOR_OK,
			"The daemon serves host memory; neither it nor this process sees a GPU.");
	for (size_t i = 0; i < f->ndevices; i++) {
		const ncclsvc_device_info *d = &f->devices[i];
		int gpu = doctor_find_gpu(f, d);
		char here[64] = "this process does not see it";
		if (gpu >= 0)
			snprintf(here, sizeof(here), "this process's GPU %d", gpu);
		if (d->transport == NCCLSVC_TRANSPORT_MPI && !d->nccl_version)
			doctor_say(r, "transport", DOCTOR_WARNING,
				   "The daemon has no usable NCCL, so it stages the memory of "
				   "device %d (%s) through host memory, which is much slower. Its "
				   "log says why (\"NCCL cannot be used\").",
				   d->device, d->name);
		else if (d->transport == NCCLSVC_TRANSPORT_MPI)
			doctor_say(r, "transport", DOCTOR_NOTE,
				   "The memory of device %d (%s) is staged through host memory, "
				   "because transport = mpi in the daemon's configuration.",
				   d->device, d->name);
		switch (d->state) {
		case NCCLSVC_DEVICE_READY:
			doctor_say(r, "devices", gpu >= 0 || f->visible ? DOCTOR_OK : DOCTOR_NOTE,
				   "Device %d (%s) is ready: %s.", d->device, d->name, here);
			break;
		case NCCLSVC_DEVICE_FAILED:
			doctor_say(r, "devices", DOCTOR_PROBLEM,
				   "Cannot use device %d (%s; %s): %s.", d->device, d->name, here,
				   d->text);
			break;
		default:
			doctor_say(r, "devices", DOCTOR_WARNING,
				   "The worker of device %d (%s; %s) is %s%s%s. Its work waits; "
				   "check again in a few seconds, then look at the daemon's log.",
				   d->device, d->name, here,
				   d->state == NCCLSVC_DEVICE_LOST ? "lost" : "starting",
				   d->text[0] ? ": " : "", d->text);
		}
	}
}

/* Compute modes that keep two processes off one GPU; under MPS they count as one. */
static void judge_mode(const struct doctor_gpu *g, int i, struct doctor_report *r)
{
	if (g->mode == CU_COMPUTEMODE_PROHIBITED)
		doctor_say(r, "compute-mode", DOCTOR_PROBLEM,
			   "GPU %d (%s) prohibits compute: `nvidia-smi -i %d -c DEFAULT`.", i,
			   g->name, i);
	else if (g->mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS && g->mps != NCCLSVC_MPS_ACTIVE)
		doctor_say(r, "compute-mode", DOCTOR_PROBLEM,
			   "GPU %d (%s) allows only one process, but the daemon's worker and a "
			   "trainer are two: run MPS, or `nvidia-smi -i %d -c DEFAULT`.",
			   i, g->name, i);
	else if (g->mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
		doctor_say(r, "compute-mode", DOCTOR_OK,
			   "GPU %d (%s) allows only one process, which is the MPS server.", i,
			   g->name);
}

static void judge_own(const struct doctor_facts *f, struct doctor_report *r)
{
	char uuid[SVC_UUID_TEXT];
	for (int i = 0; i < f->driver.ngpus; i++) {
		const struct doctor_gpu *g = &f->driver.gpus[i];
		if (f->ndevices && !find_device(f, g)) {
			svc_uuid_text(g->uuid, uuid);
			doctor_say(r, "devices", DOCTOR_WARNING,
				   "This process's GPU %d (%s, %s) is not one of the daemon's, so "
				   "it cannot join with it. Restart the daemon without "
				   "CUDA_VISIBLE_DEVICES, or with all GPUs in it.",
				   i, g->name, uuid);
		}
		judge_mode(g, i, r);
	}
}

static void judge_peers(const struct doctor_facts *f, struct doctor_report *r)
{
	struct text pairs = TEXT_INIT(-1);
	size_t bad = 0;
	const int n = f->driver.ngpus;
	for (int a = 0; a < n; a++)
		for (int b = a + 1; b < n; b++) {
			if (f->driver.gpus[a].peers >> b & 1 && f->driver.gpus[b].peers >> a & 1)
				continue;
			if (bad++ < 4)
				text_printf(&pairs, "%s%d and %d", bad > 1 ? ", " : "", a, b);
		}
	char *text = text_steal(&pairs);
	if (bad)
		doctor_say(
			r, "peers", DOCTOR_WARNING,
			"GPUs %s%s cannot access each other's memory (of %d pairs, %zu): between "
			"them the direct transport is off, and NCCL goes through host memory. See "
			"`nvidia-smi topo -p2p r`; IOMMU and ACS settings can prevent access too.",
			text, bad > 4 ? ", ..." : "", n * (n - 1) / 2, bad);
	else if (n > 1)
		doctor_say(r, "peers", DOCTOR_OK, "All %d GPUs can access each other's memory.", n);
	free(text);
}

/* Small operations are faster on the direct transport than in the workers. */
static void judge_kernels(const struct doctor_facts *f, struct doctor_report *r)
{
	if (!doctor_gpus_matter(f))
		return;
	if (!f->kernels)
		doctor_say(
			r, "kernels", DOCTOR_NOTE,
			"This library was built without nvcc or clang, so it has no direct "
			"transport: all operations go to the daemon's workers, and small ones are "
			"slower. Install either compiler, and set up a new build directory.");
	else if (f->peer && !strcmp(f->peer, "0"))
		doctor_say(r, "kernels", DOCTOR_NOTE,
			   "NCCLSVC_PEER is 0 here, so the direct transport is off: all operations "
			   "go to the daemon's workers, and small ones are slower, also on the "
			   "other ranks of the same communicators.");
	else
		doctor_say(r, "kernels", DOCTOR_OK,
			   "This library has the direct transport's kernels.");
}

/* The size up to which the direct transport is faster than NCCL. Communicators of a single GPU do
 * not use it. */
static void judge_crossover(const struct doctor_facts *f, struct doctor_report *r)
{
	size_t measured = 0;
	for (size_t i = 0; i < f->ndevices; i++)
		measured += f->devices[i].peer_source == NCCLSVC_PEER_MEASURED;
	if (f->ndevices > 1 && f->kernels && measured)
		doctor_say(r, "crossover", DOCTOR_OK,
			   "The size from which NCCL is faster than the direct transport was "
			   "measured on this machine.");
}

static void judge_shared_gpu(const struct doctor_facts *f, struct doctor_report *r)
{
	if (f->shared_gpu)
		doctor_say(r, "shared-gpu", DOCTOR_NOTE,
			   "%zu communicator%s (%s%s) %s two ranks on one GPU. NCCL would refuse "
			   "that; here all operations run in kernels. Without MPS, the kernels of "
			   "two processes take turns on the GPU, so each operation waits some "
			   "milliseconds: use MPS, or give each rank its own GPU.",
			   f->shared_gpu, f->shared_gpu == 1 ? "" : "s", f->shared_gpu_label,
			   f->shared_gpu == 1 ? "" : " and others",
			   f->shared_gpu == 1 ? "has" : "have");
}

void doctor_judge_gpus(const struct doctor_facts *f, struct doctor_report *r)
{
	judge_files(f, r);
	judge_nodes(f, r);
	judge_visible(f, r);
	bool driver = judge_driver(f, r);
	judge_nccl(f, r);
	judge_daemons(f, r);
	judge_kernels(f, r);
	judge_crossover(f, r);
	judge_shared_gpu(f, r);
	if (!driver)
		return;
	judge_own(f, r);
	judge_peers(f, r);
}
