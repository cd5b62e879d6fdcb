/* SPDX-License-Identifier: Apache-2.0
 * How much memory the system would still give this process. Where it gives what is asked for, and
 * ends processes later (the default), the answer is always "enough".
 */
#ifndef DAEMON_MEMORY_LEFT_H
#define DAEMON_MEMORY_LEFT_H

#include <stdbool.h>
#include <stdint.h>

/* Would RLIMIT_AS and, if vm.overcommit_memory is 2, the system's commit limit let the process have
 * so many bytes more? Nothing is taken to find out: other threads allocate meanwhile. Any thread.
 */
bool memory_left(uint64_t bytes);
/* The process's address space. */
uint64_t memory_held(void);

#endif
