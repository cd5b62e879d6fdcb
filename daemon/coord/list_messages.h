/* SPDX-License-Identifier: Apache-2.0
 * Messages between daemons that carry clients' lists. */
#ifndef COORD_LIST_MESSAGES_H
#define COORD_LIST_MESSAGES_H

#include <stdint.h>

/* A client's LIST, for the node that it names. */
struct control_list {
	uint32_t slot, number; /* the client's, and of its request: the answer repeats them */
	uint32_t what;
	uint32_t uid;	   /* the client's user, who sees the same as on that node */
	uint32_t admin;	   /* 1: the client administers */
	uint32_t confined; /* 1: it is in a pod or container */
	uint64_t from;
};

struct control_listed {
	uint32_t slot, number;
	int32_t result; /* 0: struct svc_list_reply and its records follow */
	uint32_t reserved;
};

#endif
