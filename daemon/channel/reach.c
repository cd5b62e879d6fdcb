/* SPDX-License-Identifier: Apache-2.0 */
#include "reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/config.h"
#include "build_config.h"

/* wanted: a name or an address; NULL: any interface except loopback. */
static bool matches(const struct ifaddrs *i, const char *wanted)
{
	uint8_t address[sizeof(struct in6_addr)];
	const int family = i->ifa_addr->sa_family;
	if (!(i->ifa_flags & IFF_UP))
		return false;
	if (!wanted)
		return !(i->ifa_flags & IFF_LOOPBACK);
	if (!strcmp(wanted, i->ifa_name))
		return true;
	if (inet_pton(family, wanted, address) != 1)
		return false;
	if (family == AF_INET)
		return !memcmp(address, &((struct sockaddr_in *)i->ifa_addr)->sin_addr,
			       sizeof(struct in_addr));
	return !memcmp(address, &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, sizeof(address));
}

static bool find_reach(const char *wanted, struct reach *out)
{
	struct ifaddrs *all, *i;
	bool found = false;
	if (getifaddrs(&all))
		return false;
	for (int family = 0; family < 2 && !found; family++) {
		for (i = all; i && !found; i = i->ifa_next) {
			if (!i->ifa_addr || i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET))
				continue;
			if (!matches(i, wanted))
				continue;
			socklen_t length =
				family ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
			found = getnameinfo(i->ifa_addr, length, out->address, sizeof(out->address),
					    NULL, 0, NI_NUMERICHOST) == 0;
			snprintf(out->interface, sizeof(out->interface), "%s", i->ifa_name);
		}
	}
	freeifaddrs(all);
	return found;
}

struct reach reach_choose(const struct config *config, bool one_machine)
{
	struct reach r = {.interface = ""};
	const char *wanted = config->cluster_interface;
	if (!wanted[0] && !one_machine && find_reach(NULL, &r))
		return r;
	if (!wanted[0])
		wanted = "127.0.0.1";
	if (!find_reach(wanted, &r)) {
		r.interface[0] = '\0';
		snprintf(r.address, sizeof(r.address), "%s", wanted);
	}
	return r;
}

int node_info_fill(struct node_info *info, const struct config *config)
{
	info->pid = getpid();
	info->ranks = (uint32_t)config->ranks;
	gethostname(info->host, sizeof(info->host) - 1);
	snprintf(info->version, sizeof(info->version), "%s", NCCLSVC_VERSION_STRING);
	return getrandom(&info->incarnation, sizeof(info->incarnation), 0) ==
			       sizeof(info->incarnation)
		       ? 0
		       : -1;
}
