/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_COMM_REFUSAL_H
#define CLIENT_COMM_REFUSAL_H

#include "core/op.h"

/* Tells the daemon that the library has refused this operation, for the reason in the thread's last
 * error: the other ranks may wait for it. Does nothing for errors that are no refusals, such as
 * AGAIN. Does not block. Locked. */
void refusal_tell(const struct op *op);

#endif
