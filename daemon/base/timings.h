/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of deadlines and intervals of the daemon and its workers: each says who waits for what,
 * and what happens then. No other file defines one (tests/unit/test_one_place checks that).
 *
 * Not here: deadlines that a user sets (a task's timeout, and the configuration's hello_seconds,
 * drain_seconds, keepalive_seconds, worker_seconds, comm_idle_seconds, cluster_seconds); how long
 * threads poll (spin.h, which clients share); what the protocol promises (svc_limits.h). */
#ifndef DAEMON_TIMINGS_H
#define DAEMON_TIMINGS_H
#include <stdint.h>

/* ---- Failing tasks, ending epochs, releasing streams: in the order in which they follow ---- */
/* A node waits for another daemon's answer: its vote on an operation that this node wants to fail,
 * a late member's commit, SPLIT or JOIN. Then the epoch (or the request) ends with TIMEOUT, and the
 * silent node is named. */
#define NODE_ANSWER_NS		 UINT64_C(3000000000)
/* After the loss of a node, the new rendezvous of its communicators waits for each living node to
 * register its members of the epochs that run. Then it handles JOINs without. */
#define NODES_REGISTER_NS	 UINT64_C(3000000000)
/* A rendezvous without members is kept for so long at least (comm_idle_seconds may be shorter):
 * that of a SPLIT's part that cannot begin refuses late JOINs. So is a coordinator that others ask
 * before its epoch's START has come. */
#define RENDEZVOUS_KEPT_NS	 UINT64_C(60000000000)
/* The sequencer tells the nodes that wait for an operation on GPUs which nodes have requested it,
 * so that inspection names those that have not, after this interval. */
#define SEQUENCER_LOOK_NS	 UINT64_C(250000000)
/* A node that ends an epoch waits for the other nodes to end it too, so that all know which
 * operations were agreed on before. Then it ends the epoch without them. With GPUs it waits longer:
 * after an end without agreement, NCCL's communicator is made anew. For so long after that end, it
 * tells a sequencer that succeeds a lost one that it has ended: the others may wait for that. */
#define EPOCH_OVER_NS		 UINT64_C(50000000)
#define EPOCH_CLOSE_NS		 UINT64_C(1000000000)
/* An epoch that all nodes have ended waits for operations of the host that are under way. Then they
 * are aborted. */
#define EPOCH_DRAIN_NS		 UINT64_C(25000000)
/* The supervisor waits for tasks that were launched on GPUs before their epoch ended, to keep
 * NCCL's communicator. Then it is aborted. (At most: worker_seconds may be shorter.) */
#define EPOCH_LAND_NS		 UINT64_C(10000000000)
/* Streams of an epoch that is over wait for the GPUs, which may still write to their memory. When
 * no task of it has ended for so long, they go on all the same. NCCL's abort takes half of it. */
#define STREAM_RELEASE_NS	 UINT64_C(1000000000)
/* While tasks are in flight, the inputs of sessions that have ended are raised again after this: a
 * dying stream may write its smaller value over the one that released it. */
#define INPUTS_LOOK_NS		 UINT64_C(10000000)
/* A worker that has lost its supervisor lets what is under way go on for so many SECONDS. Then it
 * releases the streams, until no task has ended for STILL, and for LAST at most. Then it exits. */
#define SUPERVISOR_LOST_SECONDS	 1
#define SUPERVISOR_LOST_STILL_NS UINT64_C(300000000)
#define SUPERVISOR_LOST_LAST_NS	 UINT64_C(3000000000)
/* The scheduler looks often for what CUDA graphs start, for so long after the last of it. Then it
 * naps as it does while tasks last long. */
#define TRIGGERS_EXPECTED_NS	 UINT64_C(10000000)
/* A member has left: its slot is given to another communicator when the scheduler has had so long
 * to finish with it. */
#define COMM_LEAVING_NS		 UINT64_C(100000000)
/* The rendezvous of epochs across nodes was lost: what is said of those that are not announced here
 * is kept for so long, while other nodes may announce them. Then it is dropped. */
#define UNEXPECTED_KEPT_NS	 UINT64_C(60000000000)
/* The supervisor looks at the pages of a communicator whose members' kernels meet, and writes its
 * sign of life, after this interval: QUIET when for so long no member has launched one, and none
 * has waited. A kernel that at so many looks waits for what will not come ends the epoch: within
 * 100 ms, and the GPUs and the scheduler had 50 ms to go on. */
#define PEER_LOOK_AGAIN_NS	 UINT64_C(25000000)
#define PEER_LOOKS		 3
#define PEER_LOOK_QUIET_NS	 UINT64_C(1000000000)
/* The communicators of all users are looked at for so long in a turn of the loop. Those of one user
 * get 1/PEER_LOOKS_SHARE of the supervisor's time; with more of them, looks come later. */
#define PEER_LOOKS_TURN_NS	 UINT64_C(1000000)
#define PEER_LOOKS_SHARE	 8

/* ---- Everywhere ---- */
/* An idle thread that waits for something that nothing announces looks again after this. */
#define NAP_NS	      1000000
/* A process that has run for so long was no failed start: its back-off begins anew. */
#define STEADY_NS     UINT64_C(10000000000)
/* Log messages of one kind, or on failed tasks of one communicator, are limited in each window. */
#define LOG_WINDOW_NS UINT64_C(5000000000)

/* ---- The supervisor's loop: no user delays the others ---- */
/* After a deadline's work, the loop serves its descriptors for so long at least. */
#define LOOP_PAUSE_NS	    UINT64_C(1000000)
/* Requests of one user are handled for so long. Then others have their turn. */
#define USER_TURN_NS	    UINT64_C(2000000)
/* A session that ends leaves its communicators, and lets its memory go, for so long. Then others
 * have their turn. */
#define SESSION_END_TURN_NS UINT64_C(1000000)
/* The scheduler's events, and messages of this node to itself, are handled for so long before each
 * request, which pays for them. Then the request has its turn, or I/O, and the rest later. */
#define OWN_TURN_NS	    UINT64_C(1000000)
/* Overdue requests and sessions are ended for so long. Then I/O has its turn, then the rest. */
#define EXPIRE_TURN_NS	    UINT64_C(1000000)
/* A message that a socket did not take is sent again after this, which doubles up to MAX. */
#define SEND_AGAIN_NS	    UINT64_C(10000000)
#define SEND_AGAIN_MAX_NS   UINT64_C(640000000)
/* A user's thread that closes and unmaps ends when it was idle so long. */
#define CLOSER_IDLE_NS	    UINT64_C(100000000)
/* The daemon's end waits for all these threads. Then it exits without those that are blocked. */
#define CLOSERS_END_NS	    UINT64_C(500000000)
/* A removed socket's path is served again after this time: the directory may be removed, too. */
#define SOCKET_LOST_MS	    250
/* The daemon's end waits for all sessions. Then it exits, and says so. */
#define SESSIONS_END_MS	    5000

/* ---- The scheduler's rounds ---- */
/* Commands of the supervisor are run for so long. Then the rings are polled. */
#define COMMANDS_TURN_NS    UINT64_C(100000)
/* The scheduler's own thread moves bytes for so long in a round. Helpers get what takes longer. */
#define MOVE_TURN_NS	    UINT64_C(100000)
/* Helpers are woken when they save so much: to wake them takes 3 to 25 us. */
#define HELPERS_WORTH_NS    UINT64_C(12000)
/* A scheduler that polls without work yields its core after this interval. */
#define ENGINE_YIELD_NS	    UINT64_C(25000)
/* A scheduler that polls looks at the doorbells after this interval. */
#define ENGINE_LOOK_NS	    UINT64_C(25000)
/* A scheduler without a nearer deadline sleeps for so long at most: epoll takes an int. */
#define ENGINE_SLEEP_MS_MAX 60000
/* The scheduler looks for members that all wait for each other after this interval; those that wait
 * at two looks are reported to the other nodes. */
#define DEADLOCK_LOOK_NS    UINT64_C(25000000)

/* ---- The supervisor waits for its workers ---- */
/* A worker is to start within: a driver's first start can take long. Then it is killed. */
#define WORKER_START_NS		  UINT64_C(60000000000)
/* A killed worker is to end within: the driver may hold a process. Then its calls fail, and another
 * worker is started once it has ended. */
#define WORKER_DIE_NS		  UINT64_C(5000000000)
/* Overdue answers (worker_seconds) are looked for after this interval. */
#define WORKER_TICK_MS		  200
/* A worker that has said nothing for so long is asked for a sign of life. */
#define WORKER_PING_NS		  UINT64_C(10000000000)
/* A worker is started again after SOON if it was of use, else after AGAIN, doubled up to MAX. */
#define WORKER_AGAIN_SOON_MS	  5
#define WORKER_AGAIN_MS		  100
#define WORKER_AGAIN_MS_MAX	  30000
/* NCCL's initialization that misses one of its ranks is to fail by itself within. Then the workers
 * that wait in it are killed. */
#define COMM_INIT_WITHOUT_PEER_NS UINT64_C(5000000000)

/* ---- In a worker ---- */
/* Communicators are asked for errors after this interval: NCCL announces none. */
#define WORKER_WATCH_NS	      UINT64_C(50000000)
/* A slot on which no task has ended for so long may need an abort: until it moves again, no memory
 * is closed, since the driver would wait for the slot. */
#define SLOT_STUCK_NS	      UINT64_C(20000000)
/* A launch polls for the trainer's input for so long: less than a wait of the GPU costs. Then the
 * GPU waits. */
#define INPUT_POLL_NS	      UINT64_C(1500)
/* Requests, mapping and closing of memory get so long each. Then launches have their turn. */
#define WORKER_TURN_NS	      UINT64_C(500000)
/* Memory that is to be lent waits until the GPU has cleared it, which is looked for after this. */
#define LEND_LOOK_NS	      UINT64_C(50000)
/* Memory that trainers gave back waits until no task is in flight. Then it is closed; and while
 * tasks are in flight, which the driver waits for each time, more of it after AGAIN. */
#define IMPORT_CLOSE_NS	      UINT64_C(10000000000)
#define IMPORT_CLOSE_AGAIN_NS UINT64_C(10000000)
/* An abort in NCCL that takes longer is logged. */
#define ABORT_LONG_NS	      UINT64_C(30000000000)

/* ---- MPS ---- */
/* MPS is to take connections within: its control daemon after its start, and its server, which
 * refuses new clients for a moment after it has lost one. Then the start has failed. */
#define MPS_START_NS	 UINT64_C(5000000000)
/* The daemon looks whether MPS takes connections, and a worker connects again, after these. */
#define MPS_LOOK_MS	 5
#define MPS_NOT_READY_US 50000
#define MPS_TRIES	 ((int)(MPS_START_NS / 1000 / MPS_NOT_READY_US))
/* A control daemon that failed is started again after AGAIN, which doubles up to MAX. */
#define MPS_AGAIN_MS	 1000
#define MPS_AGAIN_MS_MAX 60000
/* It is to say who uses it within ANSWER, or is in use, and to end within END, or is killed. */
#define MPS_ANSWER_MS	 2000
#define MPS_END_MS	 1000

/* ---- Several nodes ---- */
/* Daemons are to connect with each other at the start within. Then they exit. */
#define NODES_CONNECT_MS    30000
/* Signs of life are sent after this interval. */
#define NODE_BEAT_MS	    300
/* A connection on which nothing came for IDLE seconds is probed after each IDLE. After so many
 * PROBES without an answer, or when sent bytes are not acknowledged for UNREACHABLE, the node is
 * lost. */
#define NODE_IDLE_SECONDS   2
#define NODE_PROBES	    3
#define NODE_UNREACHABLE_MS 10000
/* A client waits for another node's list for so long, less the time since that node was last heard
 * of. Then it gets TIMEOUT. */
#define NODE_LIST_NS	    UINT64_C(1500000000)
/* The scheduler looks for other nodes' messages after NAP while it waits for something, after IDLE
 * while others may want something, and after QUIET when nobody has for NODES_QUIET. */
#define NODES_NAP_NS	    UINT64_C(1000000)
#define NODES_NAP_IDLE_NS   UINT64_C(20000000)
#define NODES_NAP_QUIET_NS  UINT64_C(200000000)
#define NODES_QUIET_NS	    UINT64_C(5000000000)
/* A receive whose sender is lost may be written to for so long; then its memory is given back. */
#define MPI_DROP_SECONDS    0.05
/* MPI_Finalize, which waits for daemons that go on, is to end within. Then the daemon exits. */
#define MPI_FINISH_SECONDS  3

#endif
