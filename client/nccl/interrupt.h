/* SPDX-License-Identifier: Apache-2.0
 * Ctrl-C in Python programs. */
#ifndef NCCL_INTERRUPT_H
#define NCCL_INTERRUPT_H

#include <stdbool.h>

/* Is this the main thread of a Python program? There a handler of signals runs only after the call
 * has returned. */
bool interrupt_is_python(void);
/* Waits until the eventfd can be read. False: SIGINT came first, and Python has a handler for it,
 * which it runs as soon as the call returns. Only if interrupt_is_python. */
bool interrupt_wait(int eventfd);

#endif
