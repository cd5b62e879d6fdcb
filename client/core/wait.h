/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_WAIT_H
#define CLIENT_CORE_WAIT_H

#include "task.h"

/* task_wait returns OK once the task is over, else TIMEOUT; task_over looks once. Locked; yields.
 */
ncclsvc_result task_wait(ncclsvc_session *s, uint64_t task, uint64_t deadline);
bool task_over(ncclsvc_session *s, uint64_t task);

#endif
