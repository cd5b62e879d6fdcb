/* SPDX-License-Identifier: Apache-2.0 */
#include "random_messages.h"

#include <stdlib.h>
#include <string.h>

#include "values.h"

#define BITS	   23		     /* random messages have fewer than 2^(BITS - 1) bytes */
#define KERNEL_MAX ((size_t)2 << 20) /* only up to this size, addresses are unaligned */
#define GUARD	   64
#define GUARD_BYTE 0xa5
#define ALIGNED	   256
#define LOOKED_AT  1000 /* bytes checked at a message's ends, and one every STEP in between */
#define STEP	   61

static size_t bytes_of(const struct letter *m)
{
	return m->count * ncclsvc_type_size(m->type);
}

static uint8_t byte_of(const struct letters *l, const struct letter *m, size_t i)
{
	const unsigned number = (unsigned)(m - l->all);
	return (uint8_t)(i * 7 + i / 256 * 13 + number * 29 + (unsigned)m->from * 31 +
			 (unsigned)m->to * 17 + l->salt);
}

void letters_open(struct letters *l)
{
	*l = (struct letters){0};
	CHECK_CU(cu.cuMemAlloc(&l->p, LETTERS_BYTES));
	l->in = malloc(LETTERS_BYTES);
	l->out = malloc(LETTERS_BYTES);
	CHECK(l->in && l->out);
	for (int i = 0; i < LETTER_STREAMS; i++)
		l->streams[i] = gpu_stream();
}

void letters_close(struct letters *l)
{
	CHECK_CU(cu.cuMemFree(l->p));
	free(l->in);
	free(l->out);
	for (int i = 0; i < LETTER_STREAMS; i++)
		CHECK_CU(cu.cuStreamDestroy(l->streams[i]));
}

/* Reserves space for the message in the buffer, and returns its offset. */
static size_t place(struct letters *l, const struct letter *m, uint64_t *own)
{
	const size_t bytes = bytes_of(m);
	const size_t odd = bytes <= KERNEL_MAX ? draw(own) % 32 : 0;
	const size_t at = (l->bytes + GUARD + ALIGNED - 1) / ALIGNED * ALIGNED + odd;
	l->bytes = at + bytes + GUARD;
	return at;
}

/* Whether the sender's and the receiver's buffers have room for it. All ranks get the same
 * result. */
static bool has_room(const struct letter *m, size_t used[RANKS_MAX])
{
	const size_t each = bytes_of(m) + 2 * GUARD + ALIGNED + 32;
	used[m->from] += each;
	used[m->to] += each;
	return used[m->from] <= LETTERS_BYTES && used[m->to] <= LETTERS_BYTES;
}

static struct letter draw_letter(const struct rank *r, uint64_t *random)
{
	struct letter m = {.from = (int)(draw(random) % (unsigned)r->n),
			   .to = (int)(draw(random) % (unsigned)r->n),
			   .type = (ncclsvc_type)(draw(random) % TYPES)};
	const uint32_t bits = draw(random) % BITS;
	size_t bytes = draw(random) & ((1u << bits) - 1);
	if (draw(random) % 16 == 0)
		bytes = KERNEL_MAX + draw(random) % 2 * 8;
	m.count = bytes / ncclsvc_type_size(m.type);
	return m;
}

void letters_draw(struct letters *l, const struct rank *r, uint64_t *random, uint64_t *own)
{
	size_t used[RANKS_MAX] = {0};
	const unsigned most = draw(random) % 4 ? LETTERS / 4 : LETTERS;
	l->n = 0;
	l->bytes = 0;
	l->salt = (uint8_t)draw(random);
	for (unsigned i = draw(random) % most + 1; i; i--) {
		struct letter m = draw_letter(r, random);
		if (!has_room(&m, used))
			break;
		m.stream = (int)(draw(own) % LETTER_STREAMS);
		m.send_at = m.from == r->rank ? place(l, &m, own) : 0;
		m.recv_at = m.to == r->rank ? place(l, &m, own) : 0;
		l->all[l->n++] = m;
	}
	CHECK(l->bytes <= LETTERS_BYTES);
}

/* Copies the message's bytes to the GPU, on its stream. */
static void put(struct letters *l, const struct letter *m, size_t at)
{
	const size_t bytes = bytes_of(m);
	if (bytes)
		CHECK_CU(cu.cuMemcpyHtoDAsync(l->p + at, l->in + at, bytes, l->streams[m->stream]));
}

void letters_submit(struct letters *l, struct rank *r)
{
	l->guard = (uint8_t)(GUARD_BYTE + r->rank);
	memset(l->in, l->guard, l->bytes);
	gpu_put(l->p, l->in, l->bytes);
	for (struct letter *m = l->all; m < l->all + l->n; m++) {
		const CUdeviceptr from = l->p + m->send_at, to = l->p + m->recv_at;
		CHECK_OK(ncclsvc_stream_set(r->session, l->streams[m->stream], 0));
		for (size_t i = 0; m->from == r->rank && i < bytes_of(m); i++)
			l->in[m->send_at + i] = byte_of(l, m, i);
		if (m->from == r->rank) {
			put(l, m, m->send_at);
			CHECK_OK(ncclsvc_send(at(from), m->count, m->type, m->to, r->comm, NULL));
		}
		if (m->to == r->rank) {
			put(l, m, m->recv_at);
			CHECK_OK(ncclsvc_recv(at(to), m->count, m->type, m->from, r->comm, NULL));
		}
	}
}

static void check_byte(const struct letters *l, const struct letter *m, size_t i)
{
	const uint8_t is = l->out[m->recv_at + i], due = byte_of(l, m, i);
	if (is != due)
		check_failed(__FILE__, __LINE__,
			     "seed %llu: byte %zu of %zu from rank %d to rank %d is %u, not %u",
			     (unsigned long long)setup.seed, i, bytes_of(m), m->from, m->to, is,
			     due);
}

static void check_guard(const struct letters *l, const struct letter *m, size_t from)
{
	for (size_t i = from; i < from + GUARD; i++)
		if (l->out[i] != l->guard)
			check_failed(__FILE__, __LINE__,
				     "seed %llu: byte %zd beside %zu from rank %d was overwritten",
				     (unsigned long long)setup.seed,
				     (ssize_t)i - (ssize_t)m->recv_at, bytes_of(m), m->from);
}

void letters_check(struct letters *l, const struct rank *r)
{
	for (int i = 0; i < LETTER_STREAMS; i++)
		CHECK(gpu_stream_ends(l->streams[i], WAIT_MS));
	gpu_get(l->out, l->p, l->bytes);
	for (const struct letter *m = l->all; m < l->all + l->n; m++) {
		const size_t bytes = bytes_of(m);
		if (m->to != r->rank)
			continue;
		for (size_t i = 0; i < bytes;
		     i += i < LOOKED_AT || i + LOOKED_AT > bytes ? 1 : STEP)
			check_byte(l, m, i);
		check_guard(l, m, m->recv_at - GUARD);
		check_guard(l, m, m->recv_at + bytes);
	}
}
