/* SPDX-License-Identifier: Apache-2.0
 * A name can have several addresses, for example that of a service in Kubernetes to which all
 * daemons belong. Every rank chooses the same of them. */
#include "first_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/join.h"
#include "comm/launcher.h"
#include "proto/wire.h"

static const uint8_t ipv4_prefix[12] = {[10] = 0xff, [11] = 0xff};

/* ---- HOST[:PORT] ---- */

/* Cuts ":PORT" off, if there is one. "[ADDRESS]:PORT" is for IPv6. */
static ncclsvc_result take_port(char *host, uint16_t *port)
{
	char *colon = strrchr(host, ':'), *end;
	const size_t length = strlen(host);
	if (host[0] != '[' && colon != strchr(host, ':'))
		return NCCLSVC_OK; /* an address of IPv6 */
	if (colon && (host[0] != '[' || colon[-1] == ']')) {
		errno = 0;
		const long n = strtol(colon + 1, &end, 10);
		if (errno || end == colon + 1 || *end || n < 1 || n > UINT16_MAX)
			return error_argument(RENDEZVOUS_VARIABLE
					      " has port '%s': use HOST or HOST:PORT, with a "
					      "port from 1 to 65535",
					      colon + 1);
		*port = (uint16_t)n;
		*colon = '\0';
	}
	if (host[0] == '[') {
		host[strcspn(host, "]")] = '\0';
		memmove(host, host + 1, length - 1);
	}
	return NCCLSVC_OK;
}

/* Empty: the job has one node. */
static ncclsvc_result name_of_first(const ncclsvc_world_sizes *sizes, char host[LAUNCHER_HOST],
				    uint16_t *port)
{
	const char *given = getenv(RENDEZVOUS_VARIABLE);
	host[0] = '\0';
	if (given && *given) {
		if (strlen(given) >= LAUNCHER_HOST)
			return error_argument(RENDEZVOUS_VARIABLE " is longer than %d characters",
					      LAUNCHER_HOST - 1);
		strcpy(host, given);
		const ncclsvc_result r = take_port(host, port);
		return r || host[0] ? r
				    : error_argument(RENDEZVOUS_VARIABLE
						     " is '%s': use HOST or HOST:PORT",
						     given);
	}
	if (sizes->local >= sizes->world)
		return NCCLSVC_OK;
	const ncclsvc_result r = launcher_first_node(sizes->world, host);
	if (r || host[0])
		return r;
	return error_argument("the job has %d ranks, %d on each node, and no launcher names its "
			      "first node: set " RENDEZVOUS_VARIABLE "=HOST[:PORT] to that node's "
			      "daemon, the same for all ranks",
			      sizes->world, sizes->local);
}

/* ---- Addresses ---- */

static void address_of(const struct addrinfo *a, uint8_t address[16])
{
	if (a->ai_family == AF_INET) {
		memcpy(address, ipv4_prefix, sizeof(ipv4_prefix));
		memcpy(address + sizeof(ipv4_prefix),
		       &((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr, 4);
	} else {
		memcpy(address, &((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr,
		       16);
	}
}

static bool is_loopback(const uint8_t address[16])
{
	const bool ipv4 = !memcmp(address, ipv4_prefix, sizeof(ipv4_prefix));
	return ipv4 ? address[12] == 127 : !memcmp(address, &in6addr_loopback, 16);
}

/* FNV-1a of the job and the address. */
static uint64_t weight(const ncclsvc_unique_id *id, const uint8_t address[16])
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < SVC_JOB_AT + 16; i++)
		h = (h ^ (i < SVC_JOB_AT ? id->bytes[i] : address[i - SVC_JOB_AT])) *
		    UINT64_C(0x100000001b3);
	h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
	return h ^ h >> 33;
}

/* Takes the address with the highest weight, so that a node that comes or goes meanwhile changes
 * few choices. A host may resolve its own name to a loopback address. */
static void choose(const struct addrinfo *all, const ncclsvc_unique_id *id,
		   const struct svc_rendezvous *own, struct svc_rendezvous *r)
{
	uint64_t best = 0;
	for (const struct addrinfo *a = all; a; a = a->ai_next) {
		uint8_t address[16];
		address_of(a, address);
		if (is_loopback(address) && !is_loopback(own->address))
			memcpy(address, own->address, sizeof(address));
		const uint64_t w = weight(id, address);
		if (a != all && w <= best)
			continue;
		best = w;
		memcpy(r->address, address, sizeof(address));
	}
}

static ncclsvc_result resolve(const char *host, const ncclsvc_unique_id *id,
			      const struct svc_rendezvous *own, struct svc_rendezvous *r)
{
	struct addrinfo *all = NULL;
	const bool ipv4 = !memcmp(own->address, ipv4_prefix, sizeof(ipv4_prefix));
	const struct addrinfo hints = {.ai_family = ipv4 ? AF_INET : AF_INET6,
				       .ai_socktype = SOCK_STREAM};
	const int error = getaddrinfo(host, NULL, &hints, &all);
	if (error)
		return error_argument("the job's first node, '%s', has no %s address (%s): "
				      "set " RENDEZVOUS_VARIABLE
				      "=HOST[:PORT] to its daemon's, the same for all ranks",
				      host, ipv4 ? "IPv4" : "IPv6", gai_strerror(error));
	choose(all, id, own, r);
	freeaddrinfo(all);
	return NCCLSVC_OK;
}

/* ---- The daemons ---- */

/* Where other nodes reach this one. *alone: they do not need to, or the daemons were started
 * together. */
static ncclsvc_result own_of(ncclsvc_session *s, struct svc_rendezvous *own, bool *alone)
{
	struct svc_world_reply reply;
	ncclsvc_unique_id id;
	ncclsvc_result r = world_ask(s, &reply);
	*alone = r == NCCLSVC_UNSUPPORTED; /* their numbers of ranks differ */
	if (*alone)
		return NCCLSVC_OK;
	if (!r)
		r = ncclsvc_unique_id_request(s, &id);
	if (r)
		return r;
	memcpy(own, id.bytes + SVC_RENDEZVOUS_AT, sizeof(*own));
	*alone = reply.nodes > 1 || own->tag != SVC_RENDEZVOUS_TAG;
	return NCCLSVC_OK;
}

ncclsvc_result rendezvous_of_job(ncclsvc_session *s, const ncclsvc_world_sizes *sizes,
				 ncclsvc_unique_id *id)
{
	char host[LAUNCHER_HOST];
	struct svc_rendezvous own, first = {.tag = SVC_RENDEZVOUS_TAG};
	bool alone;
	ncclsvc_result r = own_of(s, &own, &alone);
	if (r || alone)
		return r;
	first.port = own.port;
	r = name_of_first(sizes, host, &first.port);
	if (r || !host[0])
		return r;
	r = resolve(host, id, &own, &first);
	if (!r)
		memcpy(id->bytes + SVC_RENDEZVOUS_AT, &first, sizeof(first));
	return r;
}
