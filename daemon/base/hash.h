/* SPDX-License-Identifier: Apache-2.0
 * uthash, whose answer to want of memory would be to end the process without a word. */
#ifndef DAEMON_HASH_H
#define DAEMON_HASH_H

#include "nofail.h"

#define uthash_malloc(bytes) nofail_malloc(bytes, "a hash table")
#include <uthash.h>

#endif
