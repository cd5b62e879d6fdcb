/* SPDX-License-Identifier: Apache-2.0
 * The thread's last error. */
#ifndef CLIENT_BASE_ERROR_H
#define CLIENT_BASE_ERROR_H

#include "api.h"
#include "proto/wire.h"

#define LOST_TEXT (SVC_TEXT_BYTES + 64) /* of a sentence about a lost session */

/* Stores the sentence and returns result. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set(ncclsvc_result result,
							       const char *format, ...);
#define error_argument(...) error_set(NCCLSVC_INVALID_ARGUMENT, __VA_ARGS__)

#endif
