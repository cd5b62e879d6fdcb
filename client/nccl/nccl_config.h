/* SPDX-License-Identifier: Apache-2.0
 * ncclConfig_t. */
#ifndef NCCL_CONFIG_H
#define NCCL_CONFIG_H

#include "handle.h"

struct config {
	bool blocking;
	char name[64];
	unsigned max_ctas; /* 0: not set */
	bool zero_ctas;	   /* the policy NCCL_CTA_POLICY_ZERO */
};

/* If config is NULL, copies `parent`, or if that is NULL too, NCCL's defaults. */
ncclResult_t config_read(const ncclConfig_t *config, const struct ncclComm *parent,
			 const char *function, struct config *out);
/* config may be NULL. *launched: an event to record when the operation is launched; NULL: none. */
ncclResult_t coll_config_read(const ncclCollConfig_t *config, const char *function,
			      CUevent *launched);

#endif
