/* SPDX-License-Identifier: Apache-2.0
 * Two well-behaved processes that reduce continuously while a test misbehaves: they must not notice
 * anything. */
#ifndef TESTS_BYSTANDERS_H
#define TESTS_BYSTANDERS_H

#include "harness.h"

struct bystanders {
	struct client clients[2];
};

void bystanders_start(struct bystanders *b, const struct daemon *d);
/* Stops both, and checks that every collective was correct, and that some were done since the
 * start. */
void bystanders_end(struct bystanders *b);

#endif
