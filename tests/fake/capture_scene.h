/* SPDX-License-Identifier: Apache-2.0
 * A GPU, streams, and words that host and GPU share, for tests of captures and graphs. */
#ifndef FAKE_CAPTURE_SCENE_H
#define FAKE_CAPTURE_SCENE_H

#include "fake_ranks.h"

#define SCENE_STREAMS 3

extern CUstream streams[SCENE_STREAMS]; /* non-blocking */

/* Opens GPU 0, the words and the streams. */
void scene_open(struct ranks *ranks);
/* A word's address on the host and on the GPU. Words are initially 0. */
_Atomic uint64_t *word(unsigned i);
CUdeviceptr word_at(unsigned i);
/* Enqueue a write of the word, or a wait until it is at least value. */
void writes(CUstream stream, unsigned i, uint64_t value);
void waits(CUstream stream, unsigned i, uint64_t value);
/* Waits until the word has the value. */
void await(unsigned i, uint64_t value);
/* Checks that the word still has the value after 20 ms. */
void stays(unsigned i, uint64_t value);

/* Maps new memory of GPU 0 at reserved addresses. */
#define SCENE_MAPPING ((size_t)2 << 20)
void map(CUdeviceptr p);

CUevent event_open(void);
void begin(CUstream stream, int mode);
CUgraph end(CUstream stream);
/* Ends a capture that must fail. Returns the error. */
CUresult end_error(CUstream stream);
/* Instantiates the graph; end_exec also ends the capture and destroys the graph. */
CUgraphExec instantiate(CUgraph graph);
CUgraphExec end_exec(CUstream stream);
void launch(CUgraphExec exec, CUstream stream);
/* Makes b wait for a's work so far. */
void joins(CUstream b, CUstream a);
size_t nodes_in(CUgraph graph);

#endif
