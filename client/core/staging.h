/* SPDX-License-Identifier: Apache-2.0
 * Shared memory that stands in for plain pointers. */
#ifndef CLIENT_CORE_STAGING_H
#define CLIENT_CORE_STAGING_H

#include "base/api.h"

struct chunk {
	struct chunk *next;
	char *base;
	size_t bytes;
	unsigned order; /* bytes is 1 << order */
	uint32_t region;
	uint32_t connection; /* session_connections */
};

#define STAGING_ORDERS 48

struct staging {
	struct chunk *idle[STAGING_ORDERS];
	size_t idle_bytes;
};

ncclsvc_result staging_get(ncclsvc_session *s, size_t bytes,
			   struct chunk **out);		   /* locked; yields */
void staging_put(ncclsvc_session *s, struct chunk *chunk); /* locked */
void staging_free(ncclsvc_session *s);			   /* frees idle chunks; locked */
void chunk_free(struct chunk *chunk);
/* Registers a chunk in use again, under its number, which `add` does. Nobody writes to it
 * meanwhile. Locked; yields. */
ncclsvc_result chunk_renew(ncclsvc_session *s, struct chunk *chunk,
			   ncclsvc_result (*add)(ncclsvc_session *s, uint32_t region, int fd,
						 uint64_t bytes));

#endif
