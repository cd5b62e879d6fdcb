/* SPDX-License-Identifier: Apache-2.0
 * A socket in front of a daemon's, whose connections pass everything on and change one thing. That
 * is the protocol versions in HELLO: with them, a client and a daemon of this build speak an older
 * version with each other, or find that they have none in common. Or a broken daemon's messages. */
#ifndef TESTS_RELAY_H
#define TESTS_RELAY_H

#include "harness.h"

struct relay {
	struct daemon behind; /* the daemon, with the relay's socket: what clients are to open */
	const struct daemon *daemon;
	uint16_t version_min, version_max; /* what the client is made to say */
	/* Changes a message of the daemon's, if it is not NULL. The message has room for
	 * SVC_LIST_MESSAGE_MAX bytes, and the fds are the relay's. */
	void (*mangle)(unsigned char *message, size_t *length, int *fds, unsigned *nfds);
	int listener;
	struct client process;
};

/* The daemon may be killed and started again; connections end with it. */
void relay_start(struct relay *r, const struct daemon *d, unsigned version_min,
		 unsigned version_max);
/* The same with all versions, and a mangle. */
void relay_start_mangling(struct relay *r, const struct daemon *d,
			  void (*mangle)(unsigned char *message, size_t *length, int *fds,
					 unsigned *nfds));
void relay_stop(struct relay *r);

#endif
