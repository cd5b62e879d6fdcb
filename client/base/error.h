/* SPDX-License-Identifier: Apache-2.0
 * The thread's last error. */
#ifndef CLIENT_BASE_ERROR_H
#define CLIENT_BASE_ERROR_H

#include "api.h"
#include "proto/wire.h"

#define LOST_TEXT (SVC_TEXT_BYTES + 64) /* of a sentence about a lost session */

/* A failure: its status and its sentence. */
struct error {
	ncclsvc_status
		status; /* its result; what else is known of a task that failed, or nothing */
	char text[LOST_TEXT * 2];
};

/* Stores the sentence and returns result. The arguments may point into the last sentence. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set(ncclsvc_result result,
							       const char *format, ...);
#define error_argument(...) error_set(NCCLSVC_INVALID_ARGUMENT, __VA_ARGS__)
/* The same for a failure of which more is known. Returns its result. */
__attribute__((format(printf, 2, 3))) ncclsvc_result error_set_status(const ncclsvc_status *status,
								      const char *format, ...);
/* The thread's last error, to be stored again later: what comes between them may fail, too. */
void error_keep(struct error *e);
ncclsvc_result error_again(const struct error *e); /* returns its result */
/* Forgets the last error: what the next failure leaves is told apart from nothing. */
void error_clear(void);

#endif
