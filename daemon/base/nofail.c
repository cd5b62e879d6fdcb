/* SPDX-License-Identifier: Apache-2.0 */
#include "nofail.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

#define PIECES (NOFAIL_RESERVE_BYTES / PIECE_BYTES)
#define PIECE_BYTES                                                                                \
	((size_t)1 << 20) /* no allocator takes more from the system for a small one               \
			   */

static struct {
	pthread_mutex_t lock;
	void *pieces[PIECES];
	_Atomic unsigned held;
} reserve = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool nofail_reserve_fill(void)
{
	if (atomic_load_explicit(&reserve.held, memory_order_relaxed) == PIECES)
		return true;
	pthread_mutex_lock(&reserve.lock);
	unsigned n = reserve.held;
	while (n < PIECES && (reserve.pieces[n] = malloc(PIECE_BYTES)))
		n++;
	reserve.held = n;
	pthread_mutex_unlock(&reserve.lock);
	return n == PIECES;
}

/* False: nothing is left. */
static bool release_piece(void)
{
	pthread_mutex_lock(&reserve.lock);
	const unsigned n = reserve.held;
	if (n) {
		free(reserve.pieces[n - 1]);
		reserve.held = n - 1;
	}
	pthread_mutex_unlock(&reserve.lock);
	return n;
}

void nofail_reserve_free(void)
{
	while (release_piece())
		;
}

_Noreturn static void give_up(const char *what)
{
	log_error("out of memory for %s: the daemon cannot continue without it, and aborts", what);
	log_flush();
	abort();
}

void *nofail_realloc(void *p, size_t bytes, const char *what)
{
	void *q;
	while (!(q = realloc(p, bytes ? bytes : 1)))
		if (!release_piece())
			give_up(what);
	return q;
}

void *nofail_calloc(size_t n, size_t bytes, const char *what)
{
	void *p;
	while (!(p = calloc(n ? n : 1, bytes ? bytes : 1)))
		if (!release_piece())
			give_up(what);
	return p;
}
