/* SPDX-License-Identifier: Apache-2.0
 * The page of session memory that holds the timelines, as GPUs access it. */
#ifndef CLIENT_CUDA_PAGE_H
#define CLIENT_CUDA_PAGE_H

#include <stdatomic.h>

#include "cuda.h"

struct gpu;
struct stream;
struct svc_timeline;

/* The timelines of a session memory, as GPUs see them: registered, and so mapped, until the last
 * reference is dropped. Connections to later daemons that get the same memory use the same page. */
struct page {
	struct page *next; /* of those retired */
	atomic_uint refs;  /* held by the session, and by members whose graphs write to it */
	const struct cuda *cuda;
	struct svc_timeline *timelines; /* a mapping of its own */
	CUdevice device;
	CUcontext
		context; /* the device's primary context, retained; the page is registered there */
	bool ours;	 /* this library registered it, and must unregister it */
	_Atomic uint64_t given; /* bits of timelines that their members no longer use */
};

/* Registers the current connection's page through the device's context. Locked. */
ncclsvc_result page_register(ncclsvc_session *s, struct gpu *g, int device);
struct page *page_ref(struct page *page);
void page_unref(struct page *page); /* NULL is allowed. */
/* Releases the streams, waits until none in these contexts (GPU_DEVICES) can still use the page,
 * except through CUDA graphs launched later, and drops the page. Not locked. */
void page_retire(struct page *page, const CUcontext *contexts);
/* The stream's device, and the page's address on it. */
ncclsvc_result page_address(struct gpu *g, const struct stream *st, CUdevice *device,
			    CUdeviceptr *address);

#endif
