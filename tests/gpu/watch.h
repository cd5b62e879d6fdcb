/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_WATCH_H
#define TESTS_GPU_WATCH_H

#include "tests/integration/harness.h"

/* Sets the daemon to query if the test hangs. */
void watch_daemon(const struct daemon *d);

#endif
