/* SPDX-License-Identifier: Apache-2.0
 * Ctrl-C in Python programs. */
#ifndef CLIENT_INTERRUPT_H
#define CLIENT_INTERRUPT_H

#include <stdbool.h>

#define INTERRUPT_LOOK_MS 100

/* Is this the main thread of a Python program? There a handler of signals runs only after the call
 * has returned. */
bool interrupt_is_python(void);
/* SIGINT has come, and Python has a handler for it, which it runs as soon as the call returns.
 * Takes Python's lock. Only if interrupt_is_python; a wait asks at least every INTERRUPT_LOOK_MS.
 */
bool interrupt_is_noted(void);
/* Waits until the eventfd can be read. False: SIGINT is noted. Only if interrupt_is_python. */
bool interrupt_wait(int eventfd);

#endif
