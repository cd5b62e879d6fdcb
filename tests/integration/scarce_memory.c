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
	while (left >= (int64_t)bytes)
		if (atomic_compare_exchange_weak(&memory->left, &left, left - (int64_t)bytes))
			return true;
	memory->refused++;
	errno = ENOMEM;
	return false;
}

static void give(size_t bytes)
{
	if (memory && memory->scarce)
		atomic_fetch_add(&memory->left, (int64_t)bytes);
}

/* Also counts the bytes that the block has beyond `taken`. */
static void *taken_whole(void *p, size_t taken)
{
	if (p && memory && memory->scarce)
		atomic_fetch_sub(&memory->left, (int64_t)(malloc_usable_size(p) - taken));
	return p;
}

void *malloc(size_t bytes)
{
	return take(bytes) ? taken_whole(__libc_malloc(bytes), bytes) : NULL;
}

void *calloc(size_t n, size_t bytes)
{
	return take(n * bytes) ? taken_whole(__libc_calloc(n, bytes), n * bytes) : NULL;
}

void *realloc(void *p, size_t bytes)
{
	const size_t had = p ? malloc_usable_size(p) : 0;
	if (bytes <= had)
		return __libc_realloc(p, bytes);
	return take(bytes - had) ? taken_whole(__libc_realloc(p, bytes), bytes) : NULL;
}

void free(void *p)
{
	if (p)
		give(malloc_usable_size(p));
	__libc_free(p);
}
