/* SPDX-License-Identifier: Apache-2.0
 * Buffers that tasks use and the process accesses. In shared memory there is one buffer; on a GPU
 * there are two, with copies between them in the order of the tasks' stream. */
#ifndef TRAINER_BUFFERS_H
#define TRAINER_BUFFERS_H

#include <ncclsvc.h>

struct gpu;

struct buffer {
	void *host;   /* the process reads and writes this */
	void *shared; /* tasks get this */
	void *heap;   /* host, if it was allocated with malloc */
	size_t bytes;
};

/* NULL, with an error printed: there is no CUDA driver. */
void *gpu_driver(void);
/* NULL, with an error printed: no driver, or no such GPU. */
struct gpu *gpu_open(int ordinal);
void gpu_close(struct gpu *g); /* NULL is allowed. */
struct CUstream_st *gpu_stream(const struct gpu *g);

/* gpu: NULL for shared memory of the session; without a session either, plain memory. Prints errors
 * and returns false. */
bool buffer_make(struct buffer *b, ncclsvc_session *s, struct gpu *g, size_t bytes);
void buffer_free(struct buffer *b, struct gpu *g);
/* Copies to the GPU, on its stream. */
bool buffer_put(const struct buffer *b, struct gpu *g);
/* Copies from the GPU, and waits for the copy. */
bool buffer_get(const struct buffer *b, struct gpu *g);

#endif
