/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

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

void session_nap(ncclsvc_session *s)
{
	session_unlock(s);
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	session_lock(s);
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

bool session_suspend(ncclsvc_session *s)
{
	const uint64_t one = 1;
	if (!s->survives || !s->watching || s->closing || s->lost || s->away == AWAY_GONE)
		return false;
	if (!s->away) {
		s->away = AWAY_RESUMING;
		s->away_until = deadline_in(s->reattach_ms);
		snprintf(s->lost_text, sizeof(s->lost_text), "another node's daemon has ended");
	}
	const ssize_t written = write(s->wake, &one, sizeof(one));
	(void)written; /* it fails only if the counter is full, and then it has been raised */
	pthread_cond_broadcast(&s->changed);
	return true;
}
