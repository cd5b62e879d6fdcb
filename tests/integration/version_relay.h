/* SPDX-License-Identifier: Apache-2.0
 * A socket in front of a daemon's, which forwards all messages and changes one thing: the protocol
 * versions in HELLO, so that a client seems newer than the daemon, or has none in common with it;
 * or the daemon's messages, as if the daemon were broken. */
#ifndef TESTS_VERSION_RELAY_H
#define TESTS_VERSION_RELAY_H

#include "harness.h"

struct relay {
	struct daemon behind; /* the daemon, with the relay's socket: clients open this one */
	const struct daemon *daemon;
	uint16_t version_min, version_max; /* replace the versions that the client offers */
	/* Changes one of the daemon's messages; NULL: none. The message has room for
	 * SVC_LIST_MESSAGE_MAX bytes, and the fds belong to the relay. */
	void (*mangle)(unsigned char *message, size_t *length, int *fds, unsigned *nfds);
	int listener;
	struct client process;
};

/* The daemon may be killed and started again; connections end with it. */
void relay_start(struct relay *r, const struct daemon *d, unsigned version_min,
		 unsigned version_max);
/* The same with all versions, and a mangle function. */
void relay_start_mangling(struct relay *r, const struct daemon *d,
			  void (*mangle)(unsigned char *message, size_t *length, int *fds,
					 unsigned *nfds));
void relay_stop(struct relay *r);

#endif
