/* SPDX-License-Identifier: Apache-2.0
 * Memory of sessions: their timelines, what was imported of trainers, and what they borrow. */
#ifndef WORKER_IMPORT_H
#define WORKER_IMPORT_H

#include "gpu_api.h"
#include "worker_protocol.h"
#include <stdbool.h>
#include <stdint.h>

struct worker;

struct session_timelines {
	void *ring; /* the whole session memory; NULL: no such session */
	size_t bytes;
	uint32_t entries;
	struct svc_timeline *host;
	CUdeviceptr device; /* the same, as the GPU addresses it */
};

/* Memory behind an imported or lent address. */
struct import {
	CUdeviceptr address;
	uint64_t bytes;
	uint32_t kind;			     /* enum svc_region_kind */
	uint32_t users;			     /* 0: to be let go */
	uint32_t opens;			     /* IPC: how often to close it */
	CUmemGenericAllocationHandle handle; /* VMM and lent */
	struct import **parts;		     /* of a range, which uses them */
	uint32_t nparts;
	uint64_t buffer_id; /* IPC: of the process pid */
	uint8_t ipc_handle[sizeof(CUipcMemHandle)];
	int32_t pid;
	struct import *prev, *next;
};

/* import.c */
void session_open(struct worker *w, struct worker_message *m, int fd);
void session_close(struct worker *w, uint32_t slot);
/* Frees memory that was closed. The driver waits for the whole GPU then, and a task in flight may
 * be one that only an abort ends: so not while tasks are in flight, unless that takes too long. */
void imports_sweep(struct worker *w, uint64_t now);
/* Without a supervisor: clients that submit from now on learn that the daemon is lost. */
void sessions_end(struct worker *w);
/* Without a supervisor: no stream of a client waits for this worker any more. */
void sessions_release(struct worker *w);
void import_open(struct worker *w, struct worker_message *m, int fd);
int import_lend(struct worker *w, struct worker_message *m); /* the fd, the caller's; or -1 */
void import_close(struct worker *w, uint64_t address);
struct import *import_find(struct worker *w, uint64_t address);

/* range.c: imports mapped once more, one behind the other. */
void range_parts(struct worker *w, const struct worker_message *m);
void range_open(struct worker *w, struct worker_message *m);
CUresult range_close(struct worker *w, struct import *range);

#endif
