/* SPDX-License-Identifier: Apache-2.0
 * Messages of inspection (wire.h describes what they have in common): chunks of lists, and the
 * daemon and its world. */
#ifndef PROTO_WIRE_LIST_H
#define PROTO_WIRE_LIST_H

#include <stdint.h>

#include "ncclsvc_types.h"
#include "svc_limits.h"

enum svc_list_what {
	SVC_LIST_SESSIONS = 1,	  /* ncclsvc_session_info */
	SVC_LIST_COMMS = 2,	  /* ncclsvc_comm_info */
	SVC_LIST_MEMBERS = 3,	  /* ncclsvc_member_info */
	SVC_LIST_TASKS = 4,	  /* ncclsvc_task_info */
	SVC_LIST_REGIONS = 5,	  /* ncclsvc_region_info */
	SVC_LIST_DEVICES = 6,	  /* ncclsvc_device_info */
	SVC_LIST_PLANS = 7,	  /* ncclsvc_plan_info */
	SVC_LIST_PLAN_TASKS = 8,  /* ncclsvc_plan_task_info */
	SVC_LIST_NODES = 9,	  /* ncclsvc_node_info; empty: this node is alone */
	SVC_LIST_FAILURES = 10,	  /* ncclsvc_failure_info, from the number `from` on */
	SVC_LIST_OPERATIONS = 11, /* ncclsvc_operation_info */
	SVC_LIST_LATENESS = 12, /* ncclsvc_lateness_info, of communicators that the asker may end */
};

struct svc_list {
	uint32_t what;
	/* 1 + the node whose list it is; 0: the one that is asked. That node gets the list from the
	 * other, which shows the user what it would show him there. An answer is TIMEOUT if the
	 * other node does not answer, PEER_GONE if its daemon has gone. */
	uint32_t node;
	uint64_t from; /* 0, or `next` of the previous chunk */
};

/* `count` records of `record_size` bytes follow: a chunk of the list. Only this message may have
 * SVC_LIST_MESSAGE_MAX bytes. A newer daemon may send longer records: read the known part and step
 * by record_size. */
struct svc_list_reply {
	uint32_t what;
	uint32_t record_size;
	uint64_t time_ns; /* CLOCK_MONOTONIC, of this chunk */
	uint64_t next;	  /* where the next chunk begins; 0: this was the last */
	uint32_t count;
	uint32_t reserved;
};

struct svc_daemon_info_request {
	uint64_t reserved;
};

struct svc_daemon_info_reply {
	ncclsvc_daemon_info info;
};

/* Asks for the shape of the world communicator, before joining it. */
struct svc_world {
	uint64_t reserved;
};

struct svc_world_reply {
	int32_t ranks;			    /* in total */
	int32_t local_ranks;		    /* of a full node; the last node may have fewer */
	int32_t node, nodes;		    /* this node, and the number of nodes */
	int32_t data, horizontal, pipeline; /* as configured; data 0: the rest */
	uint32_t reserved;
	uint64_t reserved2[4];
};

#endif
