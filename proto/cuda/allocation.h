/* SPDX-License-Identifier: Apache-2.0
 * Memory of cuMemCreate, which processes can share by file descriptor. A current context is needed,
 * and the capture mode must be relaxed. */
#ifndef PROTO_ALLOCATION_H
#define PROTO_ALLOCATION_H

#include "cuda_driver.h"

struct allocation {
	CUdeviceptr base; /* 0: there is none */
	size_t bytes;	  /* rounded up to the driver's granularity */
	CUdevice device;
};

/* Allocates memory that all GPUs of this process may access, if they can reach it. Not cleared. */
CUresult allocation_make(const struct cuda *cuda, CUdevice device, size_t bytes,
			 struct allocation *a);
/* The same for its own GPU only; the caller owns *fd, which other processes import. On failure, *fd
 * is -1 or not changed if the memory could not be exported, and otherwise open. */
CUresult allocation_make_exported(const struct cuda *cuda, CUdevice device, size_t bytes,
				  struct allocation *a, int *fd);
/* Maps another process's allocation for `device`. The caller keeps the fd. */
CUresult allocation_import(const struct cuda *cuda, int fd, CUdevice device, size_t bytes,
			   CUdeviceptr *base);
CUresult allocation_unmap(const struct cuda *cuda, CUdeviceptr base, size_t bytes);

/* After cuMemUnmap, which leaves its addresses reserved: maps new memory there, of undefined
 * content. fd as in allocation_make_exported. */
CUresult allocation_remap(const struct cuda *cuda, const struct allocation *a, int *fd);
/* The same for another process's allocation. */
CUresult allocation_import_at(const struct cuda *cuda, int fd, CUdevice device, size_t bytes,
			      CUdeviceptr base);

#endif
