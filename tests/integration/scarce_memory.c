/* SPDX-License-Identifier: Apache-2.0
 * Preloaded into the daemon (LD_PRELOAD). While the test sets `scarce` in the file $SCARCE_MEMORY,
 * malloc(3) takes its bytes from `left` in that file, and fails when they do not suffice; free(3)
 * adds to them. */
#include "scarce_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The C library's own functions, under names that are not replaced here. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void __libc_free(void *p);

static struct scarce_memory *memory;

__attribute__((constructor)) static void open_memory(void)
{
	const char *path = getenv("SCARCE_MEMORY");
	const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p = fd < 0 ? MAP_FAILED
			 : mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		memory = p;
	if (fd >= 0)
		close(fd);
}

static bool take(size_t bytes)
{
	if (!memory || !memory->scarce)
		return true;
	int64_t left = memory->left;
	while (bytes <= PTRDIFF_MAX && left >= (int64_t)bytes)
		if (atomic_compare_exchange_weak(&memory->left, &left, left - (int64_t)bytes))
			return true;
	memory->refused++;
	errno = ENOMEM;
	return false;
}

static void give(int64_t bytes)
{
	if (memory && memory->scarce)
		atomic_fetch_add(&memory->left, bytes);
}

static int64_t size_of(void *p)
{
	return p ? (int64_t)malloc_usable_size(p) : 0;
}

/* `taken` bytes were taken for the block p: corrects that to its real size, which is 0 if p is
 * NULL. */
static void *settle(void *p, int64_t taken)
{
	give(taken - size_of(p));
	return p;
}

void *malloc(size_t bytes)
{
	return take(bytes) ? settle(__libc_malloc(bytes), (int64_t)bytes) : NULL;
}

void *calloc(size_t n, size_t bytes)
{
	size_t all;
	if (__builtin_mul_overflow(n, bytes, &all)) {
		errno = ENOMEM;
		return NULL;
	}
	return take(all) ? settle(__libc_calloc(n, bytes), (int64_t)all) : NULL;
}

void *realloc(void *p, size_t bytes)
{
	const int64_t had = size_of(p);
	const size_t more = bytes > (size_t)had ? bytes - (size_t)had : 0;
	if (more && !take(more))
		return NULL;
	void *q = __libc_realloc(p, bytes);
	if (!q && bytes) { /* p is unchanged */
		give((int64_t)more);
		return NULL;
	}
	return settle(q, had + (int64_t)more);
}

void free(void *p)
{
	give(size_of(p));
	__libc_free(p);
}
