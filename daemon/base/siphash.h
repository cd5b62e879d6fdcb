/* SPDX-License-Identifier: Apache-2.0
 * SipHash-2-4: a short name for a secret, or for what users choose, that tells nothing of it and
 * that they cannot make collide. */
#ifndef BASE_SIPHASH_H
#define BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define SIPHASH_KEY_BYTES 16

uint64_t siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *data, size_t size);

#endif
