/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

void session_lock(ncclsvc_session *s)
{
	pthread_mutex_lock(&s->lock);
}

void session_unlock(ncclsvc_session *s)
{
	pthread_mutex_unlock(&s->lock);
}
