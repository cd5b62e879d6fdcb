/* SPDX-License-Identifier: Apache-2.0
 * A standalone daemon that serves communicators with ranks on other nodes. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "build_config.h"
#include "cluster.h"
#include "link.h"
#include "module.h"
#include "reach.h"
#include "tls.h"

static struct tls_config tls_config_of(const struct config *config)
{
	return (struct tls_config){.key_file = config->cluster_key_file,
				   .certificate = config->cluster_certificate,
				   .private_key = config->cluster_private_key,
				   .ca = config->cluster_ca};
}

bool cluster_serves(const struct config *config)
{
	return config->cluster_key_file[0] || config->cluster_certificate[0];
}

#define MODULE "ncclsvc-ucx.so"

/* UCX is to leave this process's signals and memory alone, and not to block the scheduler while it
 * connects, unless the environment says otherwise. */
static void calm_ucx(void)
{
	setenv("UCX_ERROR_SIGNALS", "", 0);
	setenv("UCX_HANDLE_ERRORS", "none", 0);
	setenv("UCX_MEM_EVENTS", "n", 0);
	setenv("UCX_VFS_ENABLE", "n", 0);
	setenv("UCX_LOG_LEVEL", "error", 0);
	setenv("UCX_TCP_CONN_NB", "y", 0);
}

static int open_carrier(struct cluster *c, const struct reach *reach)
{
	const struct carrier_network network = {reach->interface[0] ? reach->interface : NULL};
	char why[512] = "it has a different version";
	calm_ucx();
	const struct carrier_module *m =
		module_open(MODULE, CARRIER_SYMBOL, &c->module, why, sizeof(why));
	if (m && m->version == CARRIER_VERSION && !m->open(&network, why, sizeof(why)) &&
	    !m->carrier.listen(CARRIER_SLOTS, CARRIER_MESSAGE_MAX)) {
		c->carrier = &m->carrier;
		return 0;
	}
	log_error("to serve ranks on other nodes, the daemon needs the module " MODULE
		  ", beside it or in " NCCLSVC_LIBEXECDIR ": %s",
		  why);
	return -1;
}

/* Ids hold the address in binary. */
static bool can_be_named(const char *address)
{
	uint8_t bytes[sizeof(struct in6_addr)];
	static const uint8_t any[sizeof(bytes)];
	const int family = strchr(address, ':') ? AF_INET6 : AF_INET;
	const size_t size = family == AF_INET ? sizeof(struct in_addr) : sizeof(bytes);
	if (inet_pton(family, address, bytes) == 1 && memcmp(bytes, any, size) != 0)
		return true;
	log_error("cluster_interface: other nodes cannot reach this one at '%s': name an interface "
		  "or one address of it",
		  address);
	return false;
}

static int open_links(struct cluster *c, const struct config *config)
{
	const struct reach reach = reach_choose(config, false);
	const struct tls_config tls = tls_config_of(config);
	char why[512];
	struct node_info *me = &c->nodes[0].info;
	if (!can_be_named(reach.address))
		return -1;
	if (node_info_fill(me, config)) {
		log_error("getrandom: %m");
		return -1;
	}
	c->site = tls_site_create(&tls, why, sizeof(why));
	if (!c->site) {
		log_error("ranks on other nodes: %s", why);
		return -1;
	}
	return open_carrier(c, &reach) ||
	       link_listen(c, reach.address, (uint16_t)config->cluster_port);
}

struct cluster *cluster_open(uv_loop_t *loop, const struct config *config)
{
	struct cluster *c = calloc(1, sizeof(*c));
	if (!c || !(c->nodes = calloc(CLUSTER_NODES_MAX, sizeof(*c->nodes)))) {
		free(c);
		return NULL;
	}
	c->loop = loop;
	c->n = 1;
	if (open_links(c, config)) {
		log_flush();
		_exit(EXIT_FAILURE); /* the loop refers to it already */
	}
	if (!strncmp(c->nodes[0].info.address, "127.", 4) && !config->cluster_interface[0])
		log_warning("this machine has no network interface but the loopback: other nodes "
			    "cannot reach this one (PrivateNetwork=yes?)");
	log_info("other nodes reach this one at %s port %u", c->nodes[0].info.address,
		 c->nodes[0].info.port);
	return c;
}

void cluster_reload(struct cluster *c, const struct config *config)
{
	const struct tls_config tls = tls_config_of(config);
	char why[512];
	if (!c->mpi && tls_site_reload(c->site, &tls, why, sizeof(why)))
		log_error("the keys for other nodes stay as they were: %s", why);
}
