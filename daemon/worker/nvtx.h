/* SPDX-License-Identifier: Apache-2.0
 * Ranges for profilers, if the build found NVTX. Without a profiler they cost a few ns. */
#ifndef WORKER_NVTX_H
#define WORKER_NVTX_H

#include "proto/ncclsvc_types.h"

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#define nvtx_begin(text) nvtxRangePushA(text)
#define nvtx_end()	 nvtxRangePop()
#else
#define nvtx_begin(text) ((void)(text))
#define nvtx_end()	 ((void)0)
#endif

/* The phases of an operation: its waits, the NCCL call, the writes that end it. */
struct nvtx_names {
	const char *pre, *op, *post;
};

#define NVTX_NAMES(op, value, name) [value] = {"Pre" name, name, "Post" name},

static inline const struct nvtx_names *nvtx_names_of(unsigned op)
{
	static const struct nvtx_names names[] = {[0] = {"Pre", "?", "Post"},
						  NCCLSVC_OPS(NVTX_NAMES)};
	return &names[op < sizeof(names) / sizeof(names[0]) ? op : 0];
}

#endif
