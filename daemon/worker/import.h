/* SPDX-License-Identifier: Apache-2.0
 * Memory of sessions: their timelines and memory imported from trainers. */
#ifndef WORKER_IMPORT_H
#define WORKER_IMPORT_H

#include "base/hash.h"
#include "gpu_api.h"
#include "proto/worker_protocol.h"
#include <stdbool.h>
#include <stdint.h>

struct worker;

struct session_timelines {
	void *ring; /* the session memory; NULL: no such session */
	size_t bytes;
	uint32_t entries;
	struct svc_timeline *host;
	CUdeviceptr device; /* the same, as the GPU addresses it */
	uint32_t gpu;	    /* this worker's place in the ring's header */
};

/* Identifies a cudaMalloc allocation of some process. It is a hash key, so it has no padding. */
struct import_name {
	uint64_t buffer_id;
	int32_t pid;
	uint32_t zero;
	uint8_t ipc_handle[sizeof(CUipcMemHandle)];
};

/* Memory behind an imported address. */
struct import {
	CUdeviceptr address;
	uint64_t bytes;
	uint32_t kind;			     /* enum svc_region_kind */
	uint32_t users;			     /* 0: to be released */
	uint32_t opens;			     /* IPC: how often to close it */
	CUmemGenericAllocationHandle handle; /* VMM */
	struct import_name name;	     /* IPC */
	struct import **parts;		     /* the imports that a range uses */
	uint32_t nparts, mapped;	     /* mapped: how many of them, from the first */
	uint64_t mapped_bytes;
	bool leaves;		 /* it is in the worker's list `leaving` */
	struct closing *closing; /* to be answered when it is released; NULL: none */
	struct import *prev, *next;
	UT_hash_handle hh, hh_name;
};

/* session.c */
void session_open(struct worker *w, struct worker_message *m, int fd);
void session_close(struct worker *w, uint32_t slot);
/* Releases the memory of one closed session. */
void session_let_go(struct worker *w);
/* Without a supervisor: clients that submit from now on are told that the daemon is lost. */
void sessions_end(struct worker *w);
/* Without a supervisor: releases all streams of clients that wait for this worker, except those
 * that the next daemon continues. */
void sessions_release(struct worker *w);
/* Whether the next daemon continues any session. */
bool sessions_survive(struct worker *w);

/* import.c */
void import_open(struct worker *w, struct worker_message *m, int fd);
/* Drops one user. */
void import_put(struct worker *w, struct import *i);
struct import *import_find(const struct worker *w, uint64_t address);
void import_add(struct worker *w, struct import *i);
/* Releases memory whose address nobody knows. */
void import_drop(struct worker *w, struct import *i);
/* Is there memory to release? */
void imports_close_later(struct worker *w);
/* Maps an allocation at an address of its own. */
CUresult import_map(const struct worker *w, struct import *i);
void import_refuse(struct worker_message *m, int result, const char *what, CUresult error);

/* sweep.c */
/* Frees closed memory, for WORKER_TURN_NS. For IPC handles and sessions, the driver then waits for
 * the whole GPU, on which a task in flight may end only by an abort. So these wait until no tasks
 * are in flight, unless that takes too long. True: it can continue at once. */
bool imports_sweep(struct worker *w, uint64_t now);

/* closing.c */
/* Drops one user. If m asks for an answer, answers when the memory is released, if it is to be. */
void import_close(struct worker *w, const struct worker_message *m);
/* The memory has been released. */
void closing_end(struct worker *w, struct import *i);
/* Answers requests whose deadline has passed: the memory is released later. */
void closings_watch(struct worker *w, uint64_t now);

/* range.c: imports mapped a second time, contiguously. */
void range_parts(struct worker *w, const struct worker_message *m);
/* True: ranges_work answers when all is mapped. */
bool range_open(struct worker *w, struct worker_message *m);
/* Maps for WORKER_TURN_NS. True: there is more to do. */
bool ranges_work(struct worker *w);
/* Unmaps a range's last part. False: it has none. */
bool range_close_part(struct worker *w, struct import *range);

#endif
