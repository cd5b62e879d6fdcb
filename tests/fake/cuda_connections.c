/* SPDX-License-Identifier: Apache-2.0
 * A process's connections to the GPU, if NCCLSVC_FAKE_CONNECTIONS sets their number, unless
 * CUDA_DEVICE_MAX_CONNECTIONS does. A stream that waits for a word holds one; while all are held,
 * no stream starts anything. Unlike on GPUs, streams do not get their turns in the order of their
 * calls: with few connections, programs that work there can hang here. */
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "fake.h"
#include "proto/abi/cuda_connections.h"

#define LOOK_NS 20000000 /* interval of checks for a failed context */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;
static unsigned held;

static unsigned number(const char *variable)
{
	const char *text = getenv(variable);
	return text ? (unsigned)atoi(text) : 0;
}

/* Read at first use, because a process may set the variable before it uses CUDA. */
static unsigned connections(void)
{
	static unsigned n;
	if (!n && (n = number("NCCLSVC_FAKE_CONNECTIONS")) && number(CUDA_CONNECTIONS_VARIABLE))
		n = number(CUDA_CONNECTIONS_VARIABLE);
	if (!n)
		n = UINT_MAX;
	return n;
}

void connection_hold(void)
{
	pthread_mutex_lock(&lock);
	held++;
	pthread_mutex_unlock(&lock);
}

void connection_give_back(void)
{
	pthread_mutex_lock(&lock);
	held--;
	pthread_cond_broadcast(&given_back);
	pthread_mutex_unlock(&lock);
}

void connection_await(const atomic_int *stop)
{
	struct timespec until;
	pthread_mutex_lock(&lock);
	while (held >= connections() && !atomic_load(stop)) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += LOOK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&given_back, &lock, &until);
	}
	pthread_mutex_unlock(&lock);
}
