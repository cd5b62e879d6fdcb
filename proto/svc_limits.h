/* SPDX-License-Identifier: Apache-2.0
 * Hard limits of the protocol. Configuration can lower the limits marked (max), but never raise
 * them. */
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H

#define SVC_PROTOCOL_MIN 1
#ifndef SVC_PROTOCOL_MAX /* tests build the next version, too */
#define SVC_PROTOCOL_MAX 1
#endif

#define SVC_MESSAGE_MAX	      512   /* header included; every message is one small datagram */
#define SVC_LIST_MESSAGE_MAX  32768 /* for the reply to LIST */
#define SVC_HALF	      64 /* bytes of a record or status that most tasks need: a cache line */
#define SVC_FDS_MAX	      4	 /* in one message */
#define SVC_TEXT_BYTES	      256 /* a sentence in an error, NUL included */
#define SVC_DESCRIPTION_BYTES 256 /* what a member says about an agreement word of its own */

#define SVC_RING_MIN	 16 /* entries; always a power of two */
#define SVC_RING_DEFAULT 1024
#define SVC_RING_MAX	 65536 /* (max) */
#define SVC_TIMELINES	 64    /* per session; number 0 means none */
#define SVC_RING_WORKERS 16    /* GPUs of a node */

#define SVC_RANKS_MAX		65536		     /* in one communicator */
#define SVC_HOST_RANKS_MAX	4096		     /* in one communicator on host memory */
#define SVC_USER_RING_BYTES	(UINT64_C(1) << 30)  /* session memory per user */
#define SVC_USER_QUEUE_BYTES	(UINT64_C(64) << 20) /* unread replies per user */
#define SVC_SESSION_QUEUE_BYTES (UINT32_C(1) << 20)  /* unread replies per session */
#define SVC_USER_RANKS		262144		     /* in all communicators of a user */
#define SVC_SESSIONS_MAX	16384		     /* (max) */
#define SVC_COMMS_MAX		65536		     /* (max) in a daemon */
#define SVC_SESSION_COMMS	1024		     /* handles per session */
#define SVC_SESSION_REGIONS	4096
#define SVC_CANCELS		64     /* unanswered cancellations per session */
#define SVC_REDOPS_ASKED	64     /* unanswered reductions per session */
#define SVC_SOCKET_TASKS	128    /* pending socket tasks per session */
#define SVC_GROUP_TASKS		4096   /* tasks per task group */
#define SVC_PLAN_TASKS		65536  /* per member's plan; the same limit for groups */
#define SVC_USER_PLAN_TASKS	262144 /* tasks and groups in all plans of a user */
#define SVC_USER_RECORDINGS	128    /* recordings of a user's ended sessions */
#define SVC_RECORDINGS_MAX	512    /* recordings of all ended sessions */
#define SVC_REGION_MAX		(UINT64_C(1) << 46)

#define SVC_TIMEOUT_MAX_NS (UINT64_C(1) << 62)

#endif
