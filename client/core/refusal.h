/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_REFUSAL_H
#define CLIENT_CORE_REFUSAL_H

#include "op.h"
#include "task_slot.h"

/* Tells the daemon that the library has refused this operation, for the reason in the thread's last
 * error: the other ranks may wait for it. Does nothing for errors that are no refusals, such as
 * AGAIN. Does not block. Locked. */
void refusal_tell(const struct op *op);
/* Tells the daemon that an operation has failed in a kernel because a member was gone, once for
 * each epoch: if that member seemed to end in good order, it did not. Does not block. Locked. */
void refusal_tell_too_late(ncclsvc_session *s, const struct slot *slot);

#endif
