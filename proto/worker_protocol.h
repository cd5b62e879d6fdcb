/* SPDX-License-Identifier: Apache-2.0
 * Messages between the supervisor and a worker over their socketpair: one datagram, one struct, at
 * most one fd. An answer has the kind and key of its request. Answers come in the order of
 * requests, except for requests whose turn comes in the queue, and RANGE. */
#ifndef WORKER_PROTOCOL_H
#define WORKER_PROTOCOL_H

#include <stdint.h>

#include "wire.h"

/* argv[0] starts with this, then " gpuN", and with several nodes " of node N". Further arguments:
 * the UUID, spin_us, and how much memory to pin, or none */
#define WORKER_NAME  "ncclsvcd: worker"
#define WORKER_GPU   " gpu"
#define WORKER_NODE  " of node "
#define WORKER_PROBE "ncclsvcd: probe"

#define WORKER_FD	  3 /* the socketpair */
#define WORKER_QUEUE_FD	  4
#define WORKER_BELL_FD	  5
#define WORKER_STAGING_FD 6 /* if argv[3] says how much of it to pin */

enum worker_kind {
	WORKER_HELLO = 1, /* from the worker, when it is ready; device */
	WORKER_DEVICE, /* from the probe, for each GPU; device. The last message has text or nothing
			*/
	WORKER_SESSION,	      /* fd: the session memory. Answered */
	WORKER_SESSION_CLOSE, /* the session memory is no longer in use */
	WORKER_IMPORT,	      /* region, fd if VMM; answered with the address */
	WORKER_RANGE_PARTS,   /* range: more parts of the next range */
	WORKER_RANGE,	      /* region.bytes; answered with the address */
	WORKER_REGION_CLOSE,  /* region; with within_ns, answered when it is released, or with
				 TIMEOUT */
	WORKER_UNIQUE_ID,     /* answered with comm.id */
	WORKER_COMM_INIT,     /* comm; answered after its LAUNCH_INIT in the queue */
	WORKER_COMM_CANCEL,  /* comm: slot and number; if it has not begun, its creation is answered
			      */
	WORKER_COMM_ABORT,   /* comm; answered */
	WORKER_COMM_DESTROY, /* comm */
	WORKER_REDOP_ADD,    /* redop; answered with its number */
	WORKER_REDOP_DEL,    /* redop: slot and number */
	WORKER_REDOPS_CLEAR, /* redop: slot */
	WORKER_COMM_FAILED,  /* from the worker: comm.slot; text */
	WORKER_PING,	     /* answered */
	WORKER_END,	     /* it is not needed, and exits at once */
	WORKER_DYING,	     /* from the worker: its GPU or driver failed; text. The worker exits */
};

struct worker_message {
	uint32_t kind;
	int32_t result; /* ncclsvc_result, for an answer */
	uint64_t key;	/* of the request, returned in the answer */
	union {
		struct {
			uint8_t uuid[16];
			uint64_t memory_bytes, worker_bytes, mps_server;
			int32_t driver_version, nccl_version;
			uint32_t mps;
			uint32_t reach; /* from the probe: bitmap of the GPUs, in its numbering,
					   whose memory this one can access */
			uint32_t device_file; /* from the probe: as in ncclsvc_device_info */
			char name[NCCLSVC_NAME_BYTES];
		} device;
		struct {
			uint32_t slot;
			uint32_t entries; /* of the ring */
			uint64_t bytes;
			uint32_t gpu; /* the worker's place in the ring's header */
			uint32_t reserved;
		} session;
		struct {
			uint32_t kind; /* enum svc_region_kind */
			uint32_t reserved;
			uint64_t address, bytes;
			uint64_t buffer_id; /* with pid: permanently identifies the allocation */
			uint64_t within_ns; /* deadline, after which it fails */
			int32_t pid;
			uint32_t unused;
			uint8_t handle[64];
		} region;
		struct {
			uint32_t slot, redop;
			int32_t type;
			uint8_t scalar[8];
		} redop;
		struct {
			uint32_t count, reserved;
			uint64_t parts[16]; /* addresses of imports */
		} range;
		struct {
			uint32_t slot;
			int32_t nranks, rank;
			uint32_t reserved;
			uint64_t number; /* for creations: higher than any before */
			uint8_t id[NCCLSVC_ID_BYTES];
		} comm;
	};
	char text[SVC_TEXT_BYTES]; /* for a failure */
};

#endif
