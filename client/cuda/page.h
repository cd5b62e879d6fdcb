/* SPDX-License-Identifier: Apache-2.0
 * The page of the session memory that holds the timelines, as GPUs reach it. */
#ifndef CLIENT_CUDA_PAGE_H
#define CLIENT_CUDA_PAGE_H

#include "cuda.h"

struct connection;
struct gpu;
struct stream;

/* The timelines of one connection, as GPUs see them: the page stays mapped while it is registered.
 */
struct page {
	struct connection *connection; /* NULL: none */
	int device;		       /* whose context registered it */
	bool ours;		       /* to be unregistered */
	bool triggers;		       /* graphs write to it (trigger.h), or did */
};

/* The present connection's, through the device's context. Locked. */
ncclsvc_result page_register(ncclsvc_session *s, struct gpu *g, int device);
/* Frees the streams, and waits until none in these contexts (GPU_DEVICES) can still use the page.
 * False: CUDA graphs can, and it stays as it is for good. Not locked. */
bool page_unregister(const struct cuda *cuda, struct page *page, const CUcontext *contexts);
/* The stream's device, and where the page is for it. */
ncclsvc_result page_address(struct gpu *g, const struct stream *st, CUdevice *device,
			    CUdeviceptr *address);

#endif
