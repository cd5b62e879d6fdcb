/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONTAINED_H
#define SERVER_CONTAINED_H

#include <stdbool.h>
#include <sys/types.h>

/* Is the process in a PID namespace below this one's, like a container's processes? Also true if
 * that is unknown. */
bool process_is_contained(pid_t pid);

#endif
