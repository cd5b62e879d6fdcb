/* SPDX-License-Identifier: Apache-2.0
 * Every interval and deadline of the daemon and its workers that is no configuration key, by who
 * waits for whom. (How long threads poll is in spin.h, and what the protocol promises in
 * svc_limits.h.) */
#ifndef DAEMON_TIMINGS_H
#define DAEMON_TIMINGS_H

#include <stdint.h>

/* ---- The supervisor's loop: nobody may hold it up for the others ---- */

/* Requests of one user in a turn of the loop. */
#define USER_TURN_NS	    UINT64_C(2000000)
/* Leaving the communicators of one session that ends, in a turn of the loop. */
#define SESSION_END_TURN_NS UINT64_C(1000000)
/* Until what a socket did not take is sent again: the kernel announces no room for descriptors. */
#define SEND_AGAIN_NS	    UINT64_C(10000000)
/* A user's thread that closes descriptors, without any, until it ends. */
#define CLOSER_IDLE_NS	    UINT64_C(100000000)
/* All sessions, to be let go at the end of the daemon. */
#define SESSIONS_END_MS	    5000

/* ---- The engine: its rounds ---- */

/* Commands of the supervisor in a round, between two looks at the rings. */
#define COMMANDS_TURN_NS UINT64_C(100000)
/* Bytes moved by the engine's own thread in a round; then helpers get what takes longer. */
#define MOVE_TURN_NS	 UINT64_C(100000)
/* The time that helpers must save: to wake them takes 3 to 25 us. */
#define HELPERS_WORTH_NS UINT64_C(12000)
/* Awake without work, between yields of the core. */
#define ENGINE_YIELD_NS	 UINT64_C(25000)
/* Awake, between looks at the doorbells: each costs as much as a task. */
#define ENGINE_LOOK_NS	 UINT64_C(25000)
/* Between looks for circles of waiting ranks: who is stuck at two of them is worth a message. */
#define STUCK_LOOK_NS	 UINT64_C(25000000)
/* Failures of one kind on a communicator are told once in that time. */
#define FAILURES_TOLD_NS UINT64_C(5000000000)

/* ---- Trainers' streams ---- */

/* Between looks at inputs of sessions that have ended: a dying stream may write its own, smaller
 * value over the one that releases the lane. */
#define INPUTS_LOOK_NS	  UINT64_C(10000000)
/* Without the end of any task of an epoch that is over, until its streams are released all the
 * same: NCCL's abort takes half of that. */
#define STREAM_RELEASE_NS UINT64_C(1000000000)
/* The engine, to be through with a member that has left, before its lane is given away. */
#define COMM_LEAVING_NS	  UINT64_C(100000000)
/* Tasks that fly, to end, before a window of NCCL's goes. */
#define WINDOW_LEAVE_NS	  UINT64_C(3000000000)

/* ---- Workers, as the supervisor sees them ---- */

/* To start: a driver's first start can take long. */
#define WORKER_START_NS		  UINT64_C(60000000000)
/* To end after SIGKILL: the driver may hold a process. */
#define WORKER_DIE_NS		  UINT64_C(5000000000)
/* Between looks for overdue answers. */
#define WORKER_TICK_MS		  200
/* At least so often a worker has to say something. */
#define WORKER_PING_NS		  UINT64_C(10000000000)
/* One that lived so long is no hopeless case. */
#define WORKER_STEADY_NS	  UINT64_C(10000000000)
/* Until another is started: behind one that was of use; else, growing up to the last. */
#define WORKER_AGAIN_SOON_MS	  5
#define WORKER_AGAIN_MS		  100
#define WORKER_AGAIN_MS_MAX	  30000
/* NCCL's initialization without one of its ranks, to notice by itself. */
#define COMM_INIT_WITHOUT_PEER_NS UINT64_C(5000000000)

/* ---- Workers, among themselves ---- */

/* Between looks for errors, where nothing announces them. */
#define WORKER_WATCH_NS	 UINT64_C(50000000)
/* A lane that has stood still for so long may need what is launched next. */
#define LANE_STUCK_NS	 UINT64_C(20000000)
/* A small collective on windows takes far less: another rank's worker is gone. */
#define WINDOW_STUCK_NS	 UINT64_C(100000000)
/* Polling for a trainer's input, before the GPU waits for it: less than that wait costs. */
#define INPUT_POLL_NS	 UINT64_C(1500)
/* Memory that trainers gave back is let go, though something flies. */
#define IMPORT_CLOSE_NS	 UINT64_C(10000000000)
/* An abort in NCCL that lasts so long is worth a word. */
#define ABORT_LONG_NS	 UINT64_C(30000000000)
/* An MPS server that has just lost a client refuses new ones for a moment: between tries. */
#define MPS_NOT_READY_US 50000
/* Without a supervisor: what is under way may go on; then streams are released until nothing has
 * moved for STILL (a task takes less, or will never end), looking every NAP, for LAST at most. */
#define ORPHAN_SECONDS	 1
#define ORPHAN_NAP_NS	 1000000
#define ORPHAN_STILL_NS	 UINT64_C(300000000)
#define ORPHAN_LAST_NS	 UINT64_C(3000000000)
/* Trials of which of a GPU's two queues a trainer's stream hears sooner: one takes TRIAL at most;
 * another follows AGAIN after one without a result, or for another stream, and STALE after one
 * with. A result is clear if the least and the most that it took differ by less than SHARP. */
#define TWIN_TRIAL_NS	 UINT64_C(4000000000)
#define TWIN_AGAIN_NS	 UINT64_C(2000000000)
#define TWIN_STALE_NS	 UINT64_C(20000000000)
#define TWIN_SHARP_NS	 UINT64_C(500)

/* ---- The MPS control daemon ---- */

/* To take connections after its start, which takes some milliseconds; and between looks. */
#define MPS_START_NS	 UINT64_C(5000000000)
#define MPS_LOOK_MS	 5
/* One that lived so long is started again at once. Others later: the pause doubles. */
#define MPS_STEADY_NS	 UINT64_C(10000000000)
#define MPS_AGAIN_MS	 1000
#define MPS_AGAIN_MS_MAX 60000
/* To say who uses it, and to end. */
#define MPS_ANSWER_MS	 2000
#define MPS_END_MS	 1000

/* ---- Several nodes ---- */

/* Daemons, to connect with each other at the start. */
#define NODES_MEET_MS	    30000
/* Between signs of life. */
#define NODE_BEAT_MS	    300
/* Bytes sent to a node are not acknowledged for so long: its machine is gone. */
#define NODE_UNREACHABLE_MS 10000
/* A daemon, to answer another: who was late, who has joined, what it knows of a task. */
#define NODE_ANSWER_NS	    UINT64_C(3000000000)
/* All nodes, to end an epoch; with GPUs: else NCCL begins anew. */
#define EPOCH_OVER_NS	    UINT64_C(50000000)
#define EPOCH_CLOSE_NS	    UINT64_C(1000000000)
/* What is under way when an epoch ends in good order, to end. */
#define EPOCH_DRAIN_NS	    UINT64_C(30000000)
/* Messages of an epoch that has not begun here: it hardly will any more. */
#define EARLY_KEPT_NS	    UINT64_C(600000000000)
/* Naps between looks for other nodes' news: while something is waited for; while others may want
 * something; when, for QUIET, nobody has. */
#define NODES_NAP_NS	    UINT64_C(1000000)
#define NODES_NAP_IDLE_NS   UINT64_C(20000000)
#define NODES_NAP_QUIET_NS  UINT64_C(200000000)
#define NODES_QUIET_NS	    UINT64_C(5000000000)
/* What has come of a message when its sender dies may still be written to its place. */
#define MPI_DROP_SECONDS    0.05
/* MPI_Finalize, which waits for daemons that go on. */
#define MPI_FINISH_SECONDS  3

#endif
