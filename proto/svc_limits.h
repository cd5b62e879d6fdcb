/* SPDX-License-Identifier: Apache-2.0
 * Hard limits of the protocol. Configuration may lower what is marked (max), never raise it. */
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H

#define SVC_PROTOCOL_MIN 1
#define SVC_PROTOCOL_MAX 2

#define SVC_MESSAGE_MAX	      512   /* header included: every message is one small datagram */
#define SVC_LIST_MESSAGE_MAX  32768 /* but for the reply to LIST */
#define SVC_HALF	      64 /* bytes of a record or status that most tasks need: a cache line */
#define SVC_FDS_MAX	      4	 /* in one message */
#define SVC_TEXT_BYTES	      256 /* a sentence in an error, NUL included */
#define SVC_DESCRIPTION_BYTES 256 /* what a member says about an agreement word of its own */

#define SVC_RING_MIN	 16 /* entries; always a power of two */
#define SVC_RING_DEFAULT 1024
#define SVC_RING_MAX	 65536 /* (max) */
#define SVC_TIMELINES	 64    /* per session; number 0 means none */

#define SVC_RANKS_MAX		65536		     /* in one communicator */
#define SVC_HOST_RANKS_MAX	4096		     /* in one communicator of the host engine */
#define SVC_USER_RING_BYTES	(UINT64_C(1) << 30)  /* session memory of one user */
#define SVC_USER_QUEUE_BYTES	(UINT64_C(64) << 20) /* unread replies to one user */
#define SVC_SESSION_QUEUE_BYTES (UINT32_C(1) << 20)  /* and to one session */
#define SVC_USER_RANKS		262144		     /* in all communicators of one user */
#define SVC_SESSIONS_MAX	16384		     /* (max) */
#define SVC_COMMS_MAX		65536		     /* (max) in a daemon */
#define SVC_SESSION_COMMS	1024		     /* handles of one session */
#define SVC_SESSION_REGIONS	4096
#define SVC_CANCELS		64    /* cancellations one session has asked for and not heard of */
#define SVC_REDOPS_ASKED	64    /* reductions it has asked for and not heard of */
#define SVC_SOCKET_TASKS	128   /* tasks one session has pending by socket */
#define SVC_GROUP_TASKS		4096  /* tasks in one task group */
#define SVC_PLAN_TASKS		65536 /* in one member's plan; as many groups */
#define SVC_USER_PLAN_TASKS	262144 /* tasks and groups in all plans of one user */
#define SVC_REGION_MAX		(UINT64_C(1) << 46)

#define SVC_TIMEOUT_MAX_NS (UINT64_C(1) << 62)

#endif
