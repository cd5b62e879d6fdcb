/* SPDX-License-Identifier: Apache-2.0
 * The table of nodes, and the nodes that ids name. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cluster.h"
#include "proto/wire.h"

/* ---- The table ---- */

static uint32_t find(const struct cluster *c, const char *address, uint16_t port)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->nodes[i].info.port == port && !strcmp(c->nodes[i].info.address, address))
			return i;
	return CLUSTER_NO_NODE;
}

/* Marks this node's numbers that others' numbers stand for. */
static void mark_named(const struct cluster *c, bool named[CLUSTER_NODES_MAX])
{
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t k = 0; c->nodes[i].numbers && k < CLUSTER_NODES_MAX; k++)
			if (c->nodes[i].numbers[k] != CLUSTER_NO_NODE)
				named[c->nodes[i].numbers[k]] = true;
}

/* A node that nothing refers to any more. */
static uint32_t unused(const struct cluster *c)
{
	bool named[CLUSTER_NODES_MAX] = {false};
	mark_named(c, named);
	for (uint32_t i = 0; i < c->n; i++) {
		const struct node *n = &c->nodes[i];
		if (i != c->me && !n->out && !n->in && !named[i] &&
		    !(c->callbacks && c->callbacks->needs(c->owner, i)))
			return i;
	}
	return CLUSTER_NO_NODE;
}

uint32_t cluster_node_at(struct cluster *c, const char *address, uint16_t port)
{
	uint32_t i = find(c, address, port);
	if (i != CLUSTER_NO_NODE || c->mpi)
		return i;
	i = c->n < CLUSTER_NODES_MAX ? c->n++ : unused(c);
	if (i == CLUSTER_NO_NODE)
		return i;
	struct node *n = &c->nodes[i];
	free(n->numbers);
	*n = (struct node){.info.port = port, .here = n->here ? n->here + CARRIER_NODES : i};
	snprintf(n->info.address, sizeof(n->info.address), "%s", address);
	snprintf(n->info.host, sizeof(n->info.host), "%s", address);
	cluster_show(c, n);
	for (uint32_t k = 0; k < c->n; k++)
		c->nodes[k].announced[i / 8] &= (uint8_t) ~(1u << i % 8);
	return i;
}

bool cluster_is_together(const struct cluster *c)
{
	return c && c->mpi;
}

void cluster_show(const struct cluster *c, struct node *n)
{
	if (cluster_is_together(c))
		snprintf(n->shown, sizeof(n->shown), "%s", n->info.host);
	else
		snprintf(n->shown, sizeof(n->shown), "%s, %s port %u", n->info.host,
			 n->info.address, n->info.port);
}

void cluster_revive(struct cluster *c, uint32_t node)
{
	if (!c->mpi && node != CLUSTER_NO_NODE)
		c->nodes[node].gone = false;
}

/* ---- Ids ---- */

static bool address_of_id(const uint8_t *id, char address[CLUSTER_HOST_BYTES], uint16_t *port)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	struct svc_rendezvous r;
	memcpy(&r, id + SVC_RENDEZVOUS_AT, sizeof(r));
	if (r.tag != SVC_RENDEZVOUS_TAG || !r.port)
		return false;
	*port = r.port;
	if (!memcmp(r.address, mapped, sizeof(mapped)))
		return inet_ntop(AF_INET, r.address + sizeof(mapped), address, CLUSTER_HOST_BYTES);
	return inet_ntop(AF_INET6, r.address, address, CLUSTER_HOST_BYTES);
}

/* A node that all choose for an id that no daemon has made, as far as they know the same losses.
 * lost: they do not know of this one yet. */
static uint32_t by_hash(const struct cluster *c, const uint8_t *id, uint32_t lost)
{
	uint64_t word;
	memcpy(&word, id, sizeof(word));
	uint32_t node = (uint32_t)(word % c->n);
	while (c->nodes[node].gone && node != lost)
		node = (node + 1) % c->n;
	return node;
}

uint32_t cluster_rendezvous(struct cluster *c, const uint8_t *id)
{
	char address[CLUSTER_HOST_BYTES];
	uint16_t port;
	const bool named = address_of_id(id, address, &port);
	if (!c->mpi)
		return named ? cluster_node_at(c, address, port) : c->me;
	const uint32_t node = named ? find(c, address, port) : CLUSTER_NO_NODE;
	return node == CLUSTER_NO_NODE ? by_hash(c, id, CLUSTER_NO_NODE) : node;
}

bool cluster_gathers(const struct cluster *c, uint32_t node, const uint8_t *id)
{
	char address[CLUSTER_HOST_BYTES];
	uint16_t port;
	const bool named = address_of_id(id, address, &port);
	uint32_t at = named ? find(c, address, port) : c->mpi ? CLUSTER_NO_NODE : c->me;
	if (at == CLUSTER_NO_NODE && c->mpi)
		at = by_hash(c, id, node);
	return at == node;
}

bool cluster_knows(const struct cluster *c, const uint8_t *id)
{
	char address[CLUSTER_HOST_BYTES];
	uint16_t port;
	return cluster_is_together(c) || !address_of_id(id, address, &port) ||
	       find(c, address, port) != CLUSTER_NO_NODE;
}

uint32_t cluster_unreached(const struct cluster *c, const uint8_t *id)
{
	char address[CLUSTER_HOST_BYTES];
	uint16_t port;
	const bool named = !cluster_is_together(c) && address_of_id(id, address, &port);
	const uint32_t i = named ? find(c, address, port) : CLUSTER_NO_NODE;
	return i == CLUSTER_NO_NODE || i == c->me || c->nodes[i].carried ? CLUSTER_NO_NODE : i;
}

void cluster_note_asker(struct cluster *c, const uint8_t *id, uint32_t account)
{
	const uint32_t i = cluster_unreached(c, id);
	if (i != CLUSTER_NO_NODE)
		c->nodes[i].asker = account;
}

uint32_t cluster_asked_for(const struct cluster *c, uint32_t account)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < c->n; i++)
		n += c->nodes[i].asker == account && !c->nodes[i].carried;
	return n;
}

void cluster_name_in(const struct cluster *c, uint8_t id[NCCLSVC_ID_BYTES])
{
	const struct node_info *me = &c->nodes[c->me].info;
	struct svc_rendezvous r = {.tag = SVC_RENDEZVOUS_TAG,
				   .incarnation = me->incarnation,
				   .port = me->port,
				   .address = {[10] = 0xff, [11] = 0xff}};
	if (inet_pton(AF_INET, me->address, r.address + 12) == 1 ||
	    inet_pton(AF_INET6, me->address, r.address) == 1)
		memcpy(id + SVC_RENDEZVOUS_AT, &r, sizeof(r));
}

int cluster_new_id(const struct cluster *c, uint8_t id[NCCLSVC_ID_BYTES])
{
	if (getrandom(id, NCCLSVC_ID_BYTES, 0) != NCCLSVC_ID_BYTES)
		return -1;
	if (c)
		cluster_name_in(c, id);
	return 0;
}

uint32_t cluster_room(const struct cluster *c)
{
	return !c ? 1 : cluster_is_together(c) ? c->n : CLUSTER_NODES_MAX;
}

uint64_t cluster_ipv4(const struct cluster *c, uint32_t node)
{
	struct in_addr at;
	if (!c || c->mpi || node >= c->n ||
	    inet_pton(AF_INET, c->nodes[node].info.address, &at) != 1)
		return 0;
	return (uint64_t)ntohl(at.s_addr) << 16 | c->nodes[node].info.port;
}
