/* SPDX-License-Identifier: Apache-2.0
 * Two well-behaved processes that reduce all the time while a test misbehaves: they must notice
 * nothing. */
#ifndef TESTS_BYSTANDERS_H
#define TESTS_BYSTANDERS_H

#include "harness.h"

struct bystanders {
	struct client clients[2];
};

void bystanders_start(struct bystanders *b, const struct daemon *d);
/* Checks that they got on: every collective right, and some done since the start. */
void bystanders_end(struct bystanders *b);

#endif
