/* SPDX-License-Identifier: Apache-2.0
 * The thread's last error. */
#ifndef CLIENT_BASE_ERROR_H
#define CLIENT_BASE_ERROR_H

#include "api.h"
#include "proto/wire.h"

#define LOST_TEXT (SVC_TEXT_BYTES + 64) /* size of the sentence about a lost session */

/* A failure: its status and its sentence. */
struct error {
	ncclsvc_status status; /* the result, and for a failed task what else is known */
	char text[LOST_TEXT * 2];
};

/* Stores the sentence and returns `result`. The arguments may point into the last sentence. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set(ncclsvc_result result,
							       const char *format, ...);
#define error_argument(...) error_set(NCCLSVC_INVALID_ARGUMENT, __VA_ARGS__)
/* The same for a failure with further details. Returns its result. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set_status(const ncclsvc_status *status,
								      const char *format, ...);
/* Saves the thread's last error, because later calls may overwrite it. */
void error_keep(struct error *e);
ncclsvc_result
error_again(const struct error *e); /* Stores a saved error again. Returns its result. */
/* Clears the last error, so that the caller can tell whether the next failure left one. */
void error_clear(void);

#endif
