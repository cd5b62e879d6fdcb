/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of deadlines and intervals of the daemon and its workers: each entry says who waits for
 * what, and what happens then. No other file defines one (tests/unit/test_one_place checks that).
 *
 * Not here: deadlines set by users (a task's timeout, and the configuration's hello_seconds,
 * drain_seconds, keepalive_seconds, worker_seconds, worker_idle, idle_release, comm_idle_seconds,
 * cluster_seconds, stuck_after); polling times (spin.h, which clients share); promises of the
 * protocol (svc_limits.h). */
#ifndef DAEMON_TIMINGS_H
#define DAEMON_TIMINGS_H
#include <stdint.h>

/* ---- Failing tasks, ending epochs, releasing streams, in the order in which they happen ---- */
/* A node waits this long for another daemon's answer: its vote on an operation that this node wants
 * to fail, or whose records differ here, or a late member's commit, SPLIT or JOIN. Then the epoch
 * (or the request) ends with TIMEOUT, and the silent node is named. */
#define NODE_ANSWER_NS		 UINT64_C(3000000000)
/* The members of a subcommunicator join within this time after the result of their split. */
#define SPLIT_JOIN_NS		 UINT64_C(30000000000)
/* After the loss of a node, the new rendezvous of its communicators waits for each living node to
 * register its members of the epochs that run. Then it handles JOINs without. */
#define NODES_REGISTER_NS	 UINT64_C(3000000000)
/* A rendezvous without members is kept at least this long (comm_idle_seconds may be shorter), so
 * that the rendezvous of a SPLIT's subcommunicator that cannot begin can refuse late JOINs. The
 * same holds for a coordinator that received requests before its epoch's START. */
#define RENDEZVOUS_KEPT_NS	 UINT64_C(60000000000)
/* After this interval, the sequencer tells the nodes that wait for an operation on GPUs which nodes
 * have requested it, so that inspection can name those that have not. */
#define SEQUENCER_LOOK_NS	 UINT64_C(250000000)
/* Votes of other nodes wait this long until they are passed on without those that are missing. */
#define DISSEMINATE_NS		 UINT64_C(2000000)
/* Once a node has ended the epoch, missing votes are asked for at this interval. */
#define DISSEMINATE_PULL_NS	 UINT64_C(10000000)
/* A node that ends an epoch waits for the other nodes to end it too, so that all know which
 * operations were agreed on before. Then it ends the epoch without them. With GPUs it waits longer,
 * since NCCL's communicator must be recreated after an end without agreement. */
#define EPOCH_OVER_NS		 UINT64_C(50000000)
#define EPOCH_CLOSE_NS		 UINT64_C(1000000000)
/* An epoch that all nodes have ended waits for host operations in progress. Then they are aborted.
 */
#define EPOCH_DRAIN_NS		 UINT64_C(25000000)
/* In a suspended epoch, the nodes wait longer for each other and for host operations, since what
 * completes on only some nodes is lost. A daemon that shuts down waits at most as long for other
 * nodes that still need it. Operations on GPUs get only SUSPEND, since they may wait for a program.
 */
#define EPOCH_HANDOVER_NS	 UINT64_C(5000000000)
#define EPOCH_SUSPEND_NS	 UINT64_C(1000000000)
/* To keep NCCL's communicator, the supervisor waits for tasks that were launched on GPUs before
 * their epoch ended. Then it aborts the communicator. (This is a maximum: worker_seconds may be
 * shorter.) */
#define EPOCH_LAND_NS		 UINT64_C(10000000000)
/* Streams of an ended epoch wait for the GPUs, which may still write to their memory. When none of
 * its tasks has ended for this long, the streams continue anyway. NCCL's abort takes half of it. */
#define STREAM_RELEASE_NS	 UINT64_C(1000000000)
/* While tasks are in flight, the inputs of ended sessions are raised again after this interval,
 * since a dying stream may overwrite them with its smaller value. */
#define INPUTS_LOOK_NS		 UINT64_C(10000000)
/* A daemon that shuts down waits for an operation that was launched ahead of its stream, if the
 * next daemon can continue its session: while the operation begins, its worker must not end. */
#define DRAIN_AHEAD_NS		 UINT64_C(2000000000)
/* A worker that has lost its supervisor lets running tasks continue for so many SECONDS. Then it
 * releases the streams until no task has ended for STILL, at most for LAST, and exits. If sessions
 * survive, their tasks may pause for LONG rather than STILL, and the worker exits within
 * SURVIVED_SECONDS more. */
#define SUPERVISOR_LOST_SECONDS	 1
#define SURVIVED_SECONDS	 5
#define SUPERVISOR_LOST_LONG_NS	 UINT64_C(2000000000)
#define SUPERVISOR_LOST_STILL_NS UINT64_C(300000000)
#define SUPERVISOR_LOST_LAST_NS	 UINT64_C(3000000000)
/* After the last start by a CUDA graph, the scheduler polls for further starts for this long. Then
 * it naps as it does while tasks last long. */
#define CAPTURED_EXPECTED_NS	 UINT64_C(10000000)
/* After a member has left, the scheduler has this long to finish with its slot, which then goes to
 * another communicator. */
#define COMM_LEAVING_NS		 UINT64_C(100000000)
/* Messages about an epoch that was not announced on this node are kept for this long. */
#define UNEXPECTED_KEPT_NS	 UINT64_C(60000000000)
/* For a communicator whose members' kernels communicate directly, the supervisor inspects the
 * control blocks and writes its heartbeat at this interval; at QUIET if no member has launched a
 * kernel or waited for that long. A kernel that waits in vain at PEER_LOOKS looks ends the epoch
 * within 100 ms. The GPUs and the scheduler have 50 ms of that to make progress. */
#define PEER_LOOK_AGAIN_NS	 UINT64_C(25000000)
#define PEER_LOOKS		 3
/* The number of looks if a client that was paused during a submission, or a lagging kernel, could
 * be the cause. */
#define PEER_LOOKS_DOUBTFUL	 40
#define PEER_LOOK_QUIET_NS	 UINT64_C(1000000000)
/* The supervisor inspects all users' communicators for this long per turn of the loop. Those of one
 * user get 1/PEER_LOOKS_SHARE of the supervisor's time; if the user has more of them, looks come
 * later. */
#define PEER_LOOKS_TURN_NS	 UINT64_C(1000000)
#define PEER_LOOKS_SHARE	 8

/* The watcher looks for the end of waits that it has logged after LOOK. ncclsvc-ctl says why within
 * ANSWER, or is killed, and is not started again before AGAIN. */
#define WATCHER_LOOK_NS	  UINT64_C(1000000000)
#define WATCHER_ANSWER_NS UINT64_C(10000000000)
#define WATCHER_AGAIN_NS  UINT64_C(60000000000)

/* A process that was told of a failure, has completed no operation since, and ends within this time
 * ends because of the failure. Epochs of several communicators that end TOGETHER for one rank end
 * for one reason. What follows from a failure is gathered for a message in the log. */
#define FAILURE_FOLLOWS_NS  UINT64_C(60000000000)
#define FAILURE_TOGETHER_NS UINT64_C(2000000000)
#define FAILURE_GATHER_NS   UINT64_C(1000000000)
/* A dump of a failed communicator waits so long for the operations that the failure ends. The next
 * one of the same communicator is written after AGAIN at the earliest. */
#define DUMP_AFTER_NS	    UINT64_C(100000000)
#define DUMP_AGAIN_NS	    UINT64_C(5000000000)

/* ---- Everywhere ---- */
/* An idle thread that waits for an event without notification checks again after this interval. */
#define NAP_NS	      1000000
/* A process that has run for this long did not fail to start: its back-off starts again. */
#define STEADY_NS     UINT64_C(10000000000)
/* Messages of one kind, and those about failed tasks of one communicator, are limited in each. */
#define LOG_WINDOW_NS UINT64_C(5000000000)

/* ---- The supervisor's loop: no user delays the others ---- */
/* After handling deadlines, the loop serves its descriptors at least this long. */
#define LOOP_PAUSE_NS	    UINT64_C(1000000)
/* One user's requests are handled for this long. Then other users have their turn. */
#define USER_TURN_NS	    UINT64_C(2000000)
/* An ending session leaves communicators and frees memory for this long per turn. Then other users
 * have their turn. */
#define SESSION_END_TURN_NS UINT64_C(1000000)
/* The scheduler's events, and this node's messages to itself, are handled for this long before each
 * request, which is charged for the time. Then the request or I/O has its turn, and the rest
 * follows later. */
#define OWN_TURN_NS	    UINT64_C(1000000)
/* Overdue requests and sessions are ended for this long. Then I/O has its turn, then the rest. */
#define EXPIRE_TURN_NS	    UINT64_C(1000000)
/* A message that a socket did not accept is resent after this interval, which doubles up to MAX. */
#define SEND_AGAIN_NS	    UINT64_C(10000000)
#define SEND_AGAIN_MAX_NS   UINT64_C(640000000)
/* A user's thread that closes and unmaps exits after being idle for this long. */
#define CLOSER_IDLE_NS	    UINT64_C(100000000)
/* On exit, the daemon waits for all these threads. Then it exits without those that are blocked. */
#define CLOSERS_END_NS	    UINT64_C(500000000)
/* The daemon serves a removed socket's path again after this time, since the directory may be
 * removed, too. */
#define SOCKET_LOST_MS	    250
/* On exit, the daemon waits for all sessions. Then it exits anyway and logs that. */
#define SESSIONS_END_MS	    5000

/* ---- The scheduler's rounds ---- */
/* The supervisor's commands run for this long. Then the rings are polled. */
#define COMMANDS_TURN_NS       UINT64_C(100000)
/* The scheduler's own thread moves bytes for this long per round. Helpers get longer work. */
#define MOVE_TURN_NS	       UINT64_C(100000)
/* Helpers are woken if they save this much: waking them takes 3 to 25 us. */
#define HELPERS_WORTH_NS       UINT64_C(12000)
/* A scheduler that polls without work yields its core after this interval. */
#define SCHEDULER_YIELD_NS     UINT64_C(25000)
/* A scheduler that polls looks at the doorbells after this interval. */
#define SCHEDULER_LOOK_NS      UINT64_C(25000)
/* A scheduler without a nearer deadline sleeps this long at most, since epoll takes an int. */
#define SCHEDULER_SLEEP_MS_MAX 60000
/* The scheduler checks at this interval for members that all wait for each other; those that wait
 * at two checks are reported to the other nodes. */
#define DEADLOCK_LOOK_NS       UINT64_C(25000000)

/* ---- The supervisor waits for its workers ---- */
/* A worker must be ready within this time, as a driver's first start can take long. Then it is
 * killed. */
#define WORKER_START_NS		  UINT64_C(60000000000)
/* A killed worker must exit within this time, since the driver may hold a process. Then its calls
 * fail, and a new worker starts once it has exited. */
#define WORKER_DIE_NS		  UINT64_C(5000000000)
/* Interval of checks for overdue answers (worker_seconds). */
#define WORKER_TICK_MS		  200
/* A worker that has been silent for this long is pinged. */
#define WORKER_PING_NS		  UINT64_C(10000000000)
/* A replacement worker starts after SOON if its predecessor was of use; otherwise after AGAIN,
 * which doubles up to MAX. */
#define WORKER_AGAIN_SOON_MS	  5
#define WORKER_AGAIN_MS		  100
#define WORKER_AGAIN_MS_MAX	  30000
/* If a rank is missing, NCCL's initialization should fail by itself within this time. Then the
 * workers that wait in it are killed. */
#define COMM_INIT_WITHOUT_PEER_NS UINT64_C(5000000000)

/* ---- In a worker ---- */
/* Communicators are checked for errors at this interval, since NCCL does not report them. */
#define WORKER_WATCH_NS	      UINT64_C(50000000)
/* A slot on which no task has ended for this long may need an abort. Until it moves again, no
 * memory is closed, since the driver would wait for the slot. */
#define SLOT_STUCK_NS	      UINT64_C(20000000)
/* A launch polls this long for the trainer's input, which is less than a wait on the GPU costs.
 * Then the GPU waits. */
#define INPUT_POLL_NS	      UINT64_C(1500)
/* Requests are handled for this long, and memory is mapped and closed for this long. Then launches
 * have their turn. */
#define WORKER_TURN_NS	      UINT64_C(500000)
/* Memory that trainers return by IPC handle is closed when no task is in flight, or after this
 * time. While tasks are in flight, each further close comes AGAIN later, since it waits for the
 * driver. */
#define IMPORT_CLOSE_NS	      UINT64_C(10000000000)
#define IMPORT_CLOSE_AGAIN_NS UINT64_C(10000000)
/* An abort in NCCL that takes longer than this is logged. */
#define ABORT_LONG_NS	      UINT64_C(30000000000)

/* ---- MPS ---- */
/* MPS must accept connections within this time: its control daemon after its start, and its server,
 * which briefly refuses new clients after losing one. Then the start has failed. */
#define MPS_START_NS	 UINT64_C(5000000000)
/* Intervals at which the daemon checks whether MPS accepts connections, and a worker tries to
 * connect again. */
#define MPS_LOOK_MS	 5
#define MPS_NOT_READY_US 50000
#define MPS_TRIES	 ((int)(MPS_START_NS / 1000 / MPS_NOT_READY_US))
/* A control daemon that failed is restarted after AGAIN, which doubles up to MAX. */
#define MPS_AGAIN_MS	 1000
#define MPS_AGAIN_MS_MAX 60000
/* It must report its users within ANSWER, or counts as in use, and must exit within END, or is
 * killed. */
#define MPS_ANSWER_MS	 2000
#define MPS_END_MS	 1000

/* ---- Several nodes ---- */
/* Daemons must connect to each other within this time at the start. Then they exit. */
#define NODES_CONNECT_MS    30000
/* Interval of keep-alives. */
#define NODE_BEAT_MS	    300
/* A connection that has been silent for IDLE seconds is probed every IDLE seconds. After so many
 * PROBES without an answer, or if sent bytes stay unacknowledged for UNREACHABLE, the node is lost.
 * TCP retransmits them at least every RESEND. Before Linux 6.15 the interval keeps doubling, so an
 * outage of half of UNREACHABLE may already lose the node. */
#define NODE_IDLE_SECONDS   2
#define NODE_PROBES	    3
#define NODE_UNREACHABLE_MS 10000
#define NODE_RESEND_MS	    1000
/* Both sides of a connection must have identified themselves by then. */
#define LINK_HELLO_NS	    UINT64_C(10000000000)
/* A connection that no communicator needs is closed so long after it was used. */
#define LINK_IDLE_NS	    UINT64_C(60000000000)
/* A client waits this long for another node's list, less the time since that node was last heard
 * from. Then it gets TIMEOUT. */
#define NODE_LIST_NS	    UINT64_C(1500000000)
/* The scheduler polls for other nodes' messages after NAP while it waits for one, after IDLE while
 * others may send some, and after QUIET when nothing has come for NODES_QUIET. */
#define NODES_NAP_NS	    UINT64_C(1000000)
#define NODES_NAP_IDLE_NS   UINT64_C(20000000)
#define NODES_NAP_QUIET_NS  UINT64_C(200000000)
#define NODES_QUIET_NS	    UINT64_C(5000000000)
/* A receive whose sender is lost may still write to memory for this long; then its memory is freed.
 */
#define MPI_DROP_SECONDS    0.05
/* MPI_Finalize waits for daemons that continue, so it must return within this time. Then the daemon
 * exits. */
#define MPI_FINISH_SECONDS  3
/* How late ranks come is summed up for so long. The present and the last sums are shown. */
#define LATENESS_HALF_NS    UINT64_C(30000000000)

#endif
