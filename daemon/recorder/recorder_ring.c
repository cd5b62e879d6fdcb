/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder_ring.h"

#include <sys/mman.h>

#define LABEL_WORDS (NCCLSVC_LABEL_BYTES / sizeof(uint64_t))

struct recorder_ring *recorder_ring_create(void)
{
	void *p = mmap(NULL, sizeof(struct recorder_ring), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

void recorder_ring_free(struct recorder_ring *r)
{
	if (r)
		munmap(r, sizeof(*r));
}

void recorder_put_more(struct recorder_ring *r, uint64_t n, const struct recorded *x)
{
	uint64_t label[LABEL_WORDS] = {0};
	_Atomic uint64_t *more = r->more[n % RECORDER_ENTRIES];
	if (x->label)
		memcpy(label, x->label, sizeof(label));
	for (size_t i = 0; i < LABEL_WORDS; i++)
		recorder_store(&more[i], label[i]);
	recorder_store(&more[LABEL_WORDS], x->kernel);
}

void recorder_range(const struct recorder_ring *r, uint64_t *first, uint64_t *end)
{
	*end = atomic_load_explicit(&r->written, memory_order_acquire);
	*first = *end >= RECORDER_ENTRIES ? *end - RECORDER_ENTRIES + 1 : 0;
}

static void unpack(const uint64_t words[RECORDED_WORDS], struct recorded *x)
{
	*x = (struct recorded){
		.join = (uint32_t)words[0],
		.op = (uint8_t)(words[0] >> 32),
		.type = (uint8_t)(words[0] >> 40),
		.result = (int8_t)(uint8_t)(words[0] >> 48),
		.state = (uint8_t)(words[0] >> 56) & (uint8_t)~RECORDED_MORE,
		.seq = words[1],
		.count = words[2] & RECORDED_COUNT_MAX,
		.peer = (int32_t)(words[2] >> RECORDED_COUNT_BITS) - 1,
		.submitted_ns = words[3],
		.matched_ns = words[4],
		.started_ns = words[5],
		.done_ns = words[6],
		.graph = (uint32_t)words[7],
		.collective = (uint32_t)(words[7] >> 32),
	};
}

bool recorder_read(const struct recorder_ring *r, uint64_t n, struct recorded *x,
		   char label[NCCLSVC_LABEL_BYTES])
{
	uint64_t words[RECORDED_WORDS], more[LABEL_WORDS + 1] = {0}, first, end;
	for (size_t i = 0; i < RECORDED_WORDS; i++)
		words[i] = atomic_load_explicit(&r->words[n % RECORDER_ENTRIES][i],
						memory_order_acquire);
	const bool has_more = words[0] >> 56 & RECORDED_MORE;
	for (size_t i = 0; has_more && i <= LABEL_WORDS; i++)
		more[i] = atomic_load_explicit(&r->more[n % RECORDER_ENTRIES][i],
					       memory_order_acquire);
	recorder_range(r, &first, &end);
	if (n < first || n >= end)
		return false;
	unpack(words, x);
	x->kernel = (uint32_t)more[LABEL_WORDS];
	memcpy(label, more, NCCLSVC_LABEL_BYTES);
	label[NCCLSVC_LABEL_BYTES - 1] = '\0';
	return true;
}
