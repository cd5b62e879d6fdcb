/* SPDX-License-Identifier: Apache-2.0
 * Lists of other nodes: a client asks its own daemon, which asks that node's daemon and hands on
 * the answer. A client has one such request at a time, and a user RELAYED_MAX. Each ends by the
 * answer, by a deadline (NODE_LIST_NS), with the client's session, or with the node. A node answers
 * others for OWN_TURN_NS in a turn of its loop, and the rest with its deadlines. */
#ifndef SERVER_RELAY_H
#define SERVER_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session;
struct server;
struct svc_list;

/* True: the list is another node's, and the client has its answer, or gets it. */
bool relay_takes(struct server *s, struct session *c, uint32_t request_id,
		 const struct svc_list *m);
/* CONTROL_LIST or CONTROL_LISTED arrived. */
void relay_handle(struct server *s, uint32_t from, unsigned kind, const void *body, size_t size);
/* The session ends. */
void relay_forget(struct server *s, struct session *c);
void relay_node_lost(struct server *s, uint32_t node);
/* Ends what is overdue, and answers what other nodes ask; returns when to call next, 0 for not. */
uint64_t relay_expire(struct server *s, uint64_t now);
void relay_free(struct server *s);

#endif
