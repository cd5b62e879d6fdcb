/* SPDX-License-Identifier: Apache-2.0
 * From the queue to the GPU: with NCCL's calls or without, in windows, and copies. */
#ifndef WORKER_LAUNCH_H
#define WORKER_LAUNCH_H

#include "abi/worker_queue.h"
#include "gpu_api.h"
#include <stdbool.h>
#include <stdint.h>

struct comm_slot;
struct replays;
struct worker;

/* launch.c: takes one task group from the queue. False: it is empty. */
bool launch_next(struct worker *w);
/* Watches communicators with launches under way. */
void launch_watch(struct worker *w);
const struct launch *launch_at(const struct worker *w, uint64_t i);
/* Its input is there, as far as the host can see. */
bool launch_ready(const struct worker *w, const struct launch *l);
/* False on a slot that was aborted meanwhile. */
bool launch_usable(const struct worker *w, const struct launch *l);
/* Does it need a copy of its source, which is not NCCL's? */
bool launch_copies(const struct launch *l);
/* NCCL's part of the launches [begin, end), one group. */
ncclResult_t launch_calls(struct worker *w, uint64_t begin, uint64_t end);
/* Writes what the slot's stream has still to write. */
CUresult launch_tell(struct worker *w, uint32_t slot);

/* replay.c: the same, without NCCL if it came again and again. */
ncclResult_t replay_call(struct worker *w, uint64_t begin, uint64_t end);
/* When the slot's stream has ended what it held, and before the communicator is freed. */
void replays_free(struct replays *all);
/* They may still run. in_windows: only those that know windows, before one goes. */
void replays_forget(const struct worker *w, uint32_t slot, bool in_windows);

/* copy.c: the same, without NCCL. */
bool copy_start(struct worker *w, uint64_t pinned, char *text, size_t size);
bool copy_next(struct worker *w);
void copy_watch(struct worker *w);

/* window.c */
bool window_op(const struct launch *l);
/* What the engine asks for with such a launch. */
void window_run(struct worker *w, const struct launch *ask);
/* Where the task's memory lies as a window (0: none; it stays). False: there is no such window. */
bool window_address(const struct comm_slot *l, uint8_t window, uint64_t *address);
/* The slot's communicator ends, or has ended. */
void windows_drop(struct worker *w, struct comm_slot *l);
/* Tasks in windows are on the slot. */
bool window_pending(const struct worker *w, uint32_t slot);
/* The same, a moment later. */
bool window_stuck(const struct worker *w, uint32_t slot);

#endif
