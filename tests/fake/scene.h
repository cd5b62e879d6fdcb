/* SPDX-License-Identifier: Apache-2.0
 * A GPU, streams, and words that host and GPU share, for tests of captures and graphs. */
#ifndef FAKE_SCENE_H
#define FAKE_SCENE_H

#include "ranks.h"

#define SCENE_STREAMS 3

extern CUstream streams[SCENE_STREAMS]; /* not blocking */

/* GPU 0. */
void scene_open(struct ranks *ranks);
/* The host's, and the GPU's. They are 0 at first. */
_Atomic uint64_t *word(unsigned i);
CUdeviceptr word_at(unsigned i);
/* The stream writes the word, or waits until it is at least so large. */
void writes(CUstream stream, unsigned i, uint64_t value);
void waits(CUstream stream, unsigned i, uint64_t value);
/* Until the word has the value. */
void await(unsigned i, uint64_t value);
/* The word keeps the value for a while. */
void stays(unsigned i, uint64_t value);

/* Maps new memory of GPU 0 at reserved addresses. */
#define SCENE_MAPPING ((size_t)2 << 20)
void map(CUdeviceptr p);

CUevent event_open(void);
void begin(CUstream stream, int mode);
CUgraph end(CUstream stream);
/* As it says nothing of the graph. */
CUresult end_error(CUstream stream);
/* Makes what has been captured executable. */
CUgraphExec instantiate(CUgraph graph);
CUgraphExec end_exec(CUstream stream);
void launch(CUgraphExec exec, CUstream stream);
/* b goes on from where a is. */
void joins(CUstream b, CUstream a);
size_t nodes_in(CUgraph graph);

#endif
