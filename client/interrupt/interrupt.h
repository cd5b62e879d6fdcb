/* SPDX-License-Identifier: Apache-2.0
 * Ctrl-C in Python programs. */
#ifndef CLIENT_INTERRUPT_H
#define CLIENT_INTERRUPT_H

#include <stdbool.h>

#define INTERRUPT_LOOK_MS 100

/* Whether this is the main thread of a Python program, where signal handlers run only after the
 * call has returned. */
bool interrupt_is_python(void);
/* Whether SIGINT has arrived and Python has a handler for it, which runs as soon as the call
 * returns. Takes Python's lock. Call only if interrupt_is_python; a wait must call at least every
 * INTERRUPT_LOOK_MS. */
bool interrupt_is_noted(void);
/* Waits until the eventfd is readable. False: SIGINT has arrived. Call only if interrupt_is_python.
 */
bool interrupt_wait(int eventfd);

#endif
