/* SPDX-License-Identifier: Apache-2.0 */
#include "mangle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness_raw.h"

static uint64_t state;
static uint32_t rarity; /* one in this many messages is changed */
static struct {
	char *at;
	size_t size;
} ring;

static uint32_t draw(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % n;
}

static uint32_t a_word(uint32_t was)
{
	static const uint32_t edges[] = {0, 1, UINT32_MAX, INT32_MAX, 0x80000000, 7, 4096, 65536};
	switch (draw(4)) {
	case 0:
		return edges[draw(sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return was + 1;
	case 2:
		return was - 1;
	default:
		return (uint32_t)(state >> 20);
	}
}

static void change_word(char *bytes, size_t size)
{
	uint32_t word;
	if (size < sizeof(word))
		return;
	char *at = bytes + draw((uint32_t)(size / sizeof(word))) * sizeof(word);
	memcpy(&word, at, sizeof(word));
	word = a_word(word);
	memcpy(at, &word, sizeof(word));
}

static void keep_ring(const struct svc_header *h, const int *fds, unsigned nfds)
{
	struct stat st;
	if (h->opcode != (SVC_ATTACH | SVC_REPLY) || nfds < 1 || fstat(fds[0], &st) || !st.st_size)
		return;
	if (ring.at)
		munmap(ring.at, ring.size);
	ring.size = (size_t)st.st_size;
	ring.at = mmap(NULL, ring.size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (ring.at == MAP_FAILED)
		ring.at = NULL;
}

static void change_length(unsigned char *message, size_t *length, struct svc_header *h)
{
	const size_t was = *length;
	*length = sizeof(*h) + draw((uint32_t)(was + 64 - sizeof(*h)));
	if (*length > was)
		memset(message + was, (int)draw(256), *length - was);
	if (draw(2))
		h->length = (uint32_t)*length;
}

static void change_message(unsigned char *message, size_t *length, int *fds, unsigned *nfds,
			   struct svc_header *h)
{
	switch (draw(12)) {
	case 0:
		change_length(message, length, h);
		break;
	case 1:
		h->result = (int32_t)a_word((uint32_t)h->result);
		break;
	case 2:
		h->opcode = (uint16_t)(draw(SVC_OPCODE_END) | SVC_REPLY);
		break;
	case 3:
		if (*nfds)
			svc_close_fds(&fds[--*nfds], 1);
		break;
	case 4:
		if (*nfds > 1) {
			const int first = fds[0];
			fds[0] = fds[*nfds - 1];
			fds[*nfds - 1] = first;
		}
		break;
	default:
		for (uint32_t n = 1 + draw(3); n; n--)
			change_word((char *)message + sizeof(*h), *length - sizeof(*h));
	}
}

void mangle(unsigned char *message, size_t *length, int *fds, unsigned *nfds)
{
	struct svc_header h;
	if (*length < sizeof(h) || *length > SVC_LIST_MESSAGE_MAX - 64)
		return;
	memcpy(&h, message, sizeof(h));
	keep_ring(&h, fds, *nfds);
	if (ring.at && !draw(rarity))
		change_word(ring.at, draw(2) ? SVC_PAGE : ring.size);
	if (draw(rarity))
		return;
	change_message(message, length, fds, nfds, &h);
	memcpy(message, &h, sizeof(h));
}

static unsigned long number(const char *variable, unsigned long otherwise)
{
	const char *text = getenv(variable);
	return text ? strtoul(text, NULL, 10) : otherwise;
}

struct mangle_seeds mangle_seeds(unsigned long seeds)
{
	return (struct mangle_seeds){.first = number("NCCLSVC_TEST_SEED", 1),
				     .n = number("NCCLSVC_TEST_SEEDS", seeds)};
}

void mangle_seed(uint64_t seed)
{
	state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	rarity = 4u << seed % 5;
}
