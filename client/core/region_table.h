/* SPDX-License-Identifier: Apache-2.0
 * Memory shared with the daemon: the table of registered regions. */
#ifndef CLIENT_CORE_REGION_TABLE_H
#define CLIENT_CORE_REGION_TABLE_H

#include <stdbool.h>

#include "base/api.h"

struct region {
	char *base;
	size_t bytes;
	int fd;	     /* kept to register the region with the next daemon */
	uint32_t id; /* 0: not registered */
	bool busy;   /* a call about this region is running */
};

struct regions {
	struct region *sorted; /* sorted by base */
	size_t n, room;
};

/* The region that holds ptr, or NULL. Locked. */
struct region *region_find(const struct regions *r, const void *ptr);
ncclsvc_result region_insert(struct regions *r, const struct region *region); /* locked */
void region_remove(struct regions *r, const void *base);		      /* locked */
/* Returns the region to the daemon and to the system. Locked; yields. */
ncclsvc_result region_free(ncclsvc_session *s, struct region *region);
/* Registers the memory with the daemon. Locked; yields. */
ncclsvc_result region_register(ncclsvc_session *s, int fd, uint64_t bytes, uint64_t deadline,
			       uint32_t *id);
void regions_unregister(struct regions *r); /* marks them unregistered: the daemon is gone */
ncclsvc_result regions_register(ncclsvc_session *s,
				uint64_t deadline); /* registers all; locked; yields */
void regions_free(struct regions *r);
/* Creates a shared mapping. The caller owns *fd; -1 if fd is NULL. */
ncclsvc_result memory_map(size_t bytes, void **ptr, int *fd);

#endif
