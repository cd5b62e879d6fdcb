/* SPDX-License-Identifier: Apache-2.0 */
#include "siphash.h"

#include <string.h>

static uint64_t rotate(uint64_t x, unsigned by)
{
	return x << by | x >> (64 - by);
}

static void rounds(uint64_t v[4], unsigned n)
{
	while (n--) {
		v[0] += v[1];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[0] = rotate(v[0], 32);
		v[2] += v[3];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[2] = rotate(v[2], 32);
	}
}

static void absorb(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	rounds(v, 2);
	v[0] ^= word;
}

/* Every node of a cluster has the same byte order. */
uint64_t siphash(const uint8_t key[SIPHASH_KEY_BYTES], const void *data, size_t size)
{
	const uint8_t *at = data;
	uint64_t k[2], word, last = (uint64_t)size << 56;
	size_t left = size;
	memcpy(k, key, sizeof(k));
	uint64_t v[4] = {k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d,
			 k[0] ^ 0x6c7967656e657261, k[1] ^ 0x7465646279746573};
	for (; left >= sizeof(word); left -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		absorb(v, word);
	}
	memcpy(&last, at, left);
	absorb(v, last);
	v[2] ^= 0xff;
	rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
