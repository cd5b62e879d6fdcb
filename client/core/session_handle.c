/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "session_handle.h"

void session_lock(ncclsvc_session *s)
{
	pthread_mutex_lock(&s->lock);
}

void session_unlock(ncclsvc_session *s)
{
	pthread_mutex_unlock(&s->lock);
}

bool session_wait(ncclsvc_session *s, uint64_t deadline)
{
	if (deadline == NO_DEADLINE)
		return pthread_cond_wait(&s->changed, &s->lock) == 0;
	struct timespec t = {
		.tv_sec = (time_t)(deadline / 1000000000),
		.tv_nsec = (long)(deadline % 1000000000),
	};
	return pthread_cond_timedwait(&s->changed, &s->lock, &t) != ETIMEDOUT;
}

void session_kick(ncclsvc_session *s)
{
	if (s->kick >= 0)
		eventfd_write(s->kick, 1);
}
