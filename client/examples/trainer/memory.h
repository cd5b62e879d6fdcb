/* SPDX-License-Identifier: Apache-2.0
 * Buffers that tasks use, and the process sees. In shared memory they are one; on a GPU there are
 * two, and copies between them, in order of the stream that tasks are on. */
#ifndef TRAINER_MEMORY_H
#define TRAINER_MEMORY_H

#include <ncclsvc.h>

struct gpu;

struct buffer {
	void *host;   /* where the process reads and writes */
	void *shared; /* what tasks are given */
	void *heap;   /* host, if it is not the session's */
	size_t bytes;
};

/* NULL, having complained: there is no driver of CUDA. */
void *gpu_driver(void);
/* NULL, having complained: no driver, or no such GPU. */
struct gpu *gpu_open(int ordinal);
void gpu_close(struct gpu *g); /* NULL is allowed */
struct CUstream_st *gpu_stream(const struct gpu *g);

/* gpu: NULL for shared memory of the session; with neither, the process's own. Each complains and
 * returns false. */
bool buffer_make(struct buffer *b, ncclsvc_session *s, struct gpu *g, size_t bytes);
void buffer_free(struct buffer *b, struct gpu *g);
/* To the GPU, on its stream. */
bool buffer_put(const struct buffer *b, struct gpu *g);
/* From the GPU; when it returns, it is there. */
bool buffer_get(const struct buffer *b, struct gpu *g);

#endif
