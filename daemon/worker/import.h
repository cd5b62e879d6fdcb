/* SPDX-License-Identifier: Apache-2.0
 * Memory of sessions: their timelines, what was imported of trainers, and what they borrow. */
#ifndef WORKER_IMPORT_H
#define WORKER_IMPORT_H

#include "base/hash.h"
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

/* An allocation of cudaMalloc's of some process. A key of a hash: no byte in it is left over. */
struct import_name {
	uint64_t buffer_id;
	int32_t pid;
	uint32_t zero;
	uint8_t ipc_handle[sizeof(CUipcMemHandle)];
};

/* Memory behind an imported or lent address. */
struct import {
	CUdeviceptr address;
	uint64_t bytes;
	uint32_t kind;			     /* enum svc_region_kind */
	uint32_t users;			     /* 0: to be let go */
	uint32_t opens;			     /* IPC: how often to close it */
	CUmemGenericAllocationHandle handle; /* VMM and lent */
	struct import_name name;	     /* IPC */
	struct import **parts;		     /* of a range, which uses them */
	uint32_t nparts, mapped;	     /* so many of them, from the first */
	uint64_t mapped_bytes;
	bool leaves;		 /* it is in the worker's list `leaving` */
	struct closing *closing; /* that is answered when it is let go; NULL: none is */
	struct import *prev, *next;
	UT_hash_handle hh, hh_name;
};

/* session.c */
void session_open(struct worker *w, struct worker_message *m, int fd);
void session_close(struct worker *w, uint32_t slot);
/* Lets go the memory of one session that has been closed. */
void session_let_go(struct worker *w);
/* Without a supervisor: clients that submit from now on learn that the daemon is lost. */
void sessions_end(struct worker *w);
/* Without a supervisor: no stream of a client waits for this worker any more. */
void sessions_release(struct worker *w);

/* import.c */
void import_open(struct worker *w, struct worker_message *m, int fd);
/* One user less. */
void import_put(struct worker *w, struct import *i);
struct import *import_find(const struct worker *w, uint64_t address);
void import_add(struct worker *w, struct import *i);
/* Lets go what has no address that anybody knows. */
void import_drop(struct worker *w, struct import *i);
/* Something is to be let go. */
void imports_close_later(struct worker *w);
/* Frees memory that was closed, for WORKER_TURN_NS. The driver waits for the whole GPU then, and a
 * task in flight may be one that only an abort ends: so not while tasks are in flight, unless that
 * takes too long. True: it can go on at once. */
bool imports_sweep(struct worker *w, uint64_t now);
/* Maps an allocation at an address of its own. */
CUresult import_map(const struct worker *w, struct import *i);
void import_refuse(struct worker_message *m, int result, const char *what, CUresult error);

/* closing.c */
/* One user less. Answers if m asks for it: when the memory is let go, if that is to be. */
void import_close(struct worker *w, const struct worker_message *m);
/* The memory is let go. */
void closing_end(struct worker *w, struct import *i);
/* Tells those whose time is up that their memory is let go later. */
void closings_watch(struct worker *w, uint64_t now);

/* range.c: imports mapped once more, one behind the other. */
void range_parts(struct worker *w, const struct worker_message *m);
/* True: ranges_work answers, when all is mapped. */
bool range_open(struct worker *w, struct worker_message *m);
/* Maps for WORKER_TURN_NS. True: there is more to do. */
bool ranges_work(struct worker *w);
/* Unmaps a range's last part. False: it has none. */
bool range_close_part(struct worker *w, struct import *range);

/* lend.c: memory of this GPU for trainers. */
/* True: lendings_watch answers, when the memory is clear. */
bool lend(struct worker *w, struct worker_message *m);
void lendings_watch(struct worker *w, uint64_t now);
/* The GPU has not come to clear some of it for a while. */
bool lendings_stuck(const struct worker *w, uint64_t now);

#endif
