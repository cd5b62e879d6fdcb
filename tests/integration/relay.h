/* SPDX-License-Identifier: Apache-2.0
 * A socket in front of a daemon's, whose connections pass everything on and change one thing: the
 * protocol versions in HELLO. With them, a client and a daemon of this build speak an older version
 * with each other, or find that they have none in common. */
#ifndef TESTS_RELAY_H
#define TESTS_RELAY_H

#include "harness.h"

struct relay {
	struct daemon behind; /* the daemon, with the relay's socket: what clients are to open */
	const struct daemon *daemon;
	uint16_t version_min, version_max; /* what the client is made to say */
	int listener;
	struct client process;
};

/* The daemon may be killed and started again; connections end with it. */
void relay_start(struct relay *r, const struct daemon *d, unsigned version_min,
		 unsigned version_max);
void relay_stop(struct relay *r);

#endif
