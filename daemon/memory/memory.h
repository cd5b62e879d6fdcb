/* SPDX-License-Identifier: Apache-2.0
 * Memory registered by sessions: rings and regions of host memory (memory.c); GPU memory (gpu.c),
 * whose handles users own (handles.c), and ranges of it (range.c). */
#ifndef MEMORY_MEMORY_H
#define MEMORY_MEMORY_H

#include "gpu/gpu.h"
#include "handles.h"
#include "session/session.h"
#include "turns.h"

struct range;
struct region_shares;

/* Callbacks to the layers above. */
struct memory_callbacks {
	/* A GPU's worker knows the session's timelines now. */
	void (*session_known)(void *owner, struct session *c);
	/* All of the session's memory that a new worker imports again is imported, or lost. */
	void (*restored)(void *owner, struct session *c);
	/* Has the session joined a communicator of GPUs? */
	bool (*uses_gpus)(const struct session *c);
	/* The region, which has shares, is being deleted. True: other sessions are to unmap it
	 * within its wait_ms, and memory_unshared follows. */
	bool (*unshare)(void *owner, struct session *c, uint32_t region, uint32_t request_id);
	/* The region, which may have shares, is gone. */
	void (*region_gone)(void *owner, struct mapping *m);
};

struct memory {
	struct loop *loop;
	const struct config *config;
	struct scheduler *scheduler;
	struct sessions *sessions;
	struct gpus *gpus;
	const struct memory_callbacks *callbacks;
	void *owner; /* argument of the callbacks */
	uint64_t last_import;
	struct handles handles;
	struct turns *turns[GPUS_MAX]; /* for each GPU's worker, by user */
	uint64_t turns_ns;	       /* when to try again; 0: nothing was postponed */
};

struct mapping {
	bool used;
	bool leaving;  /* the scheduler was asked to release it */
	bool pending;  /* a GPU's worker was asked to import it */
	bool absent;   /* there was no worker to import it, or its import is gone with its worker;
			  the next worker imports it */
	uint32_t kind; /* enum svc_region_kind */
	int32_t device;
	int fd;		  /* of GPU memory; -1: none */
	void *base;	  /* host memory, as mapped here */
	uint64_t address; /* of GPU memory, as mapped by the worker; 0: not mapped */
	uint64_t import;  /* number of the last import request, to recognize late answers */
	uint64_t bytes, buffer_id;
	uint64_t base_there; /* of GPU memory, in its owner's process */
	uint64_t since_ns;
	uint32_t wait_ms; /* how long a client waits for the worker to close it, once it is leaving;
			     0: none waits */
	uint32_t fault;	  /* number of fault_watch */
	uint32_t next_free;
	uint8_t handle[64];	      /* CUDA IPC */
	struct range *range;	      /* if it is a range, otherwise NULL */
	struct region_shares *shares; /* comm/peer/share_log.c; NULL: it was never shared */
	struct handle_owner *owner, *address_owner; /* for CUDA IPC; NULL: not bound */
};

/* ---- memory.c ---- */

/* Reserves room for as many mappings of registered memory. Any thread may call failed, when
 * memory_fail is due. Returns 0 or -errno. */
int memory_start(struct memory *s, uint64_t mappings, void (*failed)(void *arg), void *arg);
/* ATTACH, or ATTACH_AGAIN, whose fd stays the caller's. */
void memory_attach(struct memory *s, struct session *c, unsigned opcode, uint32_t request_id,
		   const struct svc_attach *a, int fd);
void memory_add(struct memory *s, struct session *c, uint32_t request_id,
		const struct svc_region_add *r, int fd);
void memory_remove(struct memory *s, struct session *c, uint32_t request_id,
		   const struct svc_region_del *r);
void memory_removed(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		    bool gone);
/* Other sessions have unmapped the region, or have not done so in time: wait_ms, what is left of
 * the time that the client waits, is 0. */
void memory_unshared(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		     uint32_t wait_ms);
/* Releases the session's ring and all its registered memory, until that time at the latest. True:
 * nothing is left. */
bool memory_free_all(struct memory *s, struct session *c, uint64_t until_ns);
/* Ends sessions whose memory has failed (fault.h). False: there may be more. */
bool memory_fail(struct memory *s);
/* Returns the number of a free entry of c->mappings; 0: the session is at its limit. memory_set
 * turns it into the region; memory_clear frees it. */
uint32_t memory_free_region(struct session *c);
/* The same, or the number that RESUME has said. */
uint32_t memory_next_region(struct session *c);
struct mapping *memory_set(struct session *c, uint32_t region, const struct mapping *m);
void memory_clear(struct session *c, struct mapping *m);
/* Charges a region of this kind to the session and its user before it is created. False: an error
 * was sent, or the request waits (session_wait). */
bool memory_take(struct session *c, unsigned opcode, uint32_t request_id, uint32_t kind,
		 uint64_t bytes);
void memory_give(struct session *c, uint32_t kind, uint64_t bytes);

/* ---- gpu.c ---- */

void gpu_memory_add(struct memory *s, struct session *c, uint32_t request_id,
		    const struct svc_region_cuda *r, int fd);

/* ---- range.c ---- */

void gpu_range_add(struct memory *s, struct session *c, uint32_t request_id,
		   const struct svc_region_range *r);
/* Asks the worker to map it. */
enum turn gpu_range_map(struct memory *s, struct gpu *g, struct session *c, const struct mapping *m,
			struct region_call *call);
void gpu_range_free(struct range *range);
/* The number of mappings that GPU memory consists of, for other processes to import; 0: it is
 * opened by CUDA IPC handle. */
uint32_t gpu_region_parts(const struct mapping *m);
/* Returns the nth of these, in address order. NULL: there is none, or its region is gone. */
const struct mapping *gpu_region_part(const struct session *c, const struct mapping *m, uint32_t n);

/* ---- gpu.c ---- */

struct region_call *gpu_region_call(struct memory *s, struct session *c, unsigned opcode,
				    uint32_t request_id, uint32_t region);
/* Returns the GPU, or NULL after sending an error. Its worker may rest, or be about to start. */
struct gpu *gpu_usable(struct memory *s, struct session *c, unsigned opcode, uint32_t request_id,
		       int32_t device);
/* Registers memory that is imported when the GPU's worker runs. */
void gpu_region_absent(struct memory *s, struct session *c, uint32_t request_id, uint32_t region,
		       unsigned opcode);
/* The call's turn has come. */
enum turn gpu_region_ask(struct gpu *g, struct session *c, struct region_call *call);
/* The worker's answer to a call, which is consumed. NULL: the worker is gone. */
void gpu_region_answered(struct gpu *g, struct region_call *call,
			 const struct worker_message *answer);
void gpu_session_answered(struct gpu *g, struct region_call *call,
			  const struct worker_message *answer);

/* Releases the memory behind a GPU mapping. */
void gpu_memory_close(struct memory *s, struct session *c, struct mapping *m);
/* Likewise, and answers the REGION_DEL when the worker has closed its import. */
void gpu_memory_close_answered(struct memory *s, struct session *c, struct mapping *m,
			       uint32_t request_id);
/* The worker is gone, with all its imports. */
void gpu_memory_lost(struct memory *s, struct gpu *g);
/* There is a new worker, which imports the sessions' registered memory again. */
void gpu_memory_restore(struct memory *s, struct gpu *g);
/* Tells the GPU's worker of the session's timelines. True: it knows them. Otherwise try again when
 * comm_session_known is called. */
bool gpu_session_known(struct memory *s, struct gpu *g, struct session *c);
void gpu_session_close(struct memory *s, struct session *c);

#endif
