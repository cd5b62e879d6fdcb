/* SPDX-License-Identifier: Apache-2.0
 * How much more memory the system would give this process. Where the system overcommits and kills
 * processes later (the default), the answer is always "enough".
 */
#ifndef DAEMON_MEMORY_LEFT_H
#define DAEMON_MEMORY_LEFT_H

#include <stdbool.h>
#include <stdint.h>

/* Would RLIMIT_AS and, if vm.overcommit_memory is 2, the system's commit limit allow the process
 * this many more bytes? Does not allocate to find out, since other threads allocate meanwhile. Any
 * thread.
 */
bool memory_left(uint64_t bytes);
/* The size of the process's address space. */
uint64_t memory_held(void);

#endif
