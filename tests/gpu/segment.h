/* SPDX-License-Identifier: Apache-2.0
 * An address range whose memory of cuMemCreate grows and shrinks by chunks, each a mapping of its
 * own, as in PyTorch's expandable segments. */
#ifndef TESTS_GPU_SEGMENT_H
#define TESTS_GPU_SEGMENT_H

#include "gpu_context.h"

struct segment {
	CUdeviceptr base;
	size_t chunk;	 /* bytes of each */
	size_t reserved; /* chunks of addresses */
	size_t mapped;	 /* chunks from the start */
	int gpu;
};

void segment_open(struct segment *s, int gpu, size_t chunk, size_t reserved);
/* Maps or unmaps chunks at the end. */
void segment_size(struct segment *s, size_t chunks);
void segment_close(struct segment *s);

#endif
