/* SPDX-License-Identifier: Apache-2.0
 * A name can have several addresses, for example that of a headless service of all daemons in
 * Kubernetes. All ranks choose the same one. */
#include "first_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/join.h"
#include "comm/launcher.h"
#include "job.h"
#include "proto/wire.h"

static const uint8_t ipv4_prefix[12] = {[10] = 0xff, [11] = 0xff};

/* ---- HOST[:PORT] ---- */

static ncclsvc_result port_of(const char *text, uint16_t *port)
{
	char *end;
	errno = 0;
	const long n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < 1 || n > UINT16_MAX)
		return error_argument(
			RENDEZVOUS_VARIABLE " has port '%s': use a number from 1 to 65535", text);
	*port = (uint16_t)n;
	return NCCLSVC_OK;
}

/* Without brackets, several colons are part of an address of IPv6. */
static ncclsvc_result take(const char *given, char host[LAUNCHER_HOST], uint16_t *port)
{
	const bool brackets = given[0] == '[';
	const char *from = given + brackets, *end = from + strcspn(from, brackets ? "]" : ":");
	if (!brackets && *end && strchr(end + 1, ':'))
		end = from + strlen(from);
	const char *rest = end + (brackets && *end);
	const size_t length = (size_t)(end - from);
	if (!length || (brackets && !*end) || (*rest && *rest != ':'))
		return error_argument(RENDEZVOUS_VARIABLE
				      " is '%s': use HOST, HOST:PORT or [ADDRESS]:PORT",
				      given);
	if (length >= LAUNCHER_HOST)
		return error_argument(RENDEZVOUS_VARIABLE " is longer than %d characters",
				      LAUNCHER_HOST - 1);
	memcpy(host, from, length);
	host[length] = '\0';
	return *rest ? port_of(rest + 1, port) : NCCLSVC_OK;
}

/* Empty: the job has one node. */
static ncclsvc_result name_of_first(const ncclsvc_world_sizes *sizes, char host[LAUNCHER_HOST],
				    uint16_t *port)
{
	const char *given = getenv(RENDEZVOUS_VARIABLE);
	host[0] = '\0';
	if (given && *given)
		return take(given, host, port);
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

/* Takes the address with the highest hash, which depends on the job, too. So an address that comes
 * or goes meanwhile changes few choices. A host may resolve its own name to a loopback address. */
static void choose(const struct addrinfo *all, const ncclsvc_unique_id *id,
		   const struct svc_rendezvous *own, struct svc_rendezvous *r)
{
	uint64_t job, best = 0;
	memcpy(&job, id->bytes, sizeof(job));
	for (const struct addrinfo *a = all; a; a = a->ai_next) {
		uint8_t address[16];
		address_of(a, address);
		if (is_loopback(address) && !is_loopback(own->address))
			memcpy(address, own->address, sizeof(address));
		const uint64_t hash = job_hash(address, sizeof(address), job);
		if (a != all && hash <= best)
			continue;
		best = hash;
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
				      "=HOST[:PORT] to its daemon, the same for all ranks",
				      host, ipv4 ? "IPv4" : "IPv6", gai_strerror(error));
	choose(all, id, own, r);
	freeaddrinfo(all);
	return NCCLSVC_OK;
}

/* ---- The daemons ---- */

/* Where other nodes reach this one. *unneeded: mpirun started the daemons together, or this one
 * serves only its own node. */
static ncclsvc_result own_of(ncclsvc_session *s, struct svc_rendezvous *own, bool *unneeded)
{
	struct svc_world_reply reply;
	ncclsvc_unique_id id;
	ncclsvc_result r = world_ask(s, &reply);
	*unneeded = r == NCCLSVC_UNSUPPORTED; /* together, and the nodes differ in ranks */
	if (*unneeded)
		return NCCLSVC_OK;
	if (!r)
		r = ncclsvc_unique_id_request(s, &id);
	if (r)
		return r;
	memcpy(own, id.bytes + SVC_RENDEZVOUS_AT, sizeof(*own));
	*unneeded = reply.nodes > 1 || own->tag != SVC_RENDEZVOUS_TAG;
	return NCCLSVC_OK;
}

ncclsvc_result rendezvous_of_job(ncclsvc_session *s, const ncclsvc_world_sizes *sizes,
				 ncclsvc_unique_id *id)
{
	char host[LAUNCHER_HOST];
	struct svc_rendezvous own, first = {.tag = SVC_RENDEZVOUS_TAG};
	bool unneeded;
	ncclsvc_result r = own_of(s, &own, &unneeded);
	if (r || unneeded)
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
