/* SPDX-License-Identifier: Apache-2.0
 * The page of the session memory that holds the timelines, as GPUs reach it. */
#ifndef CLIENT_CUDA_PAGE_H
#define CLIENT_CUDA_PAGE_H

#include "cuda.h"

struct connection;
struct gpu;
struct stream;

/* The timelines of one connection, as GPUs see them: registered, and so mapped, until the last one
 * lets it go. */
struct page {
	unsigned refs; /* the session's, and of members whose graphs write to it; atomic */
	const struct cuda *cuda;
	struct connection *connection;
	CUdevice device;
	CUcontext context; /* its primary one, retained, which has registered it */
	bool ours;	   /* to be unregistered */
	uint64_t given;	   /* bits: timelines that members who had them are through with; atomic */
};

/* The present connection's, through the device's context. Locked. */
ncclsvc_result page_register(ncclsvc_session *s, struct gpu *g, int device);
struct page *page_ref(struct page *page);
void page_unref(struct page *page); /* NULL is allowed */
/* Frees the streams, and waits until none in these contexts (GPU_DEVICES) can still use the page,
 * but for CUDA graphs that are launched yet. Then lets it go. Not locked. */
void page_retire(struct page *page, const CUcontext *contexts);
/* The stream's device, and where the page is for it. */
ncclsvc_result page_address(struct gpu *g, const struct stream *st, CUdevice *device,
			    CUdeviceptr *address);

#endif
