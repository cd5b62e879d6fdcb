/* SPDX-License-Identifier: Apache-2.0
 * uthash, which by default exits silently when it runs out of memory. */
#ifndef DAEMON_HASH_H
#define DAEMON_HASH_H

#include "nofail.h"

#define uthash_malloc(bytes) nofail_malloc(bytes, "a hash table")
#include <uthash.h>

#endif
