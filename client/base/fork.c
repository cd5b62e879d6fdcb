/* SPDX-License-Identifier: Apache-2.0
 * A forked child (a data loader's worker, say) inherits the connections' sockets. If it kept them
 * open, the daemon would not notice its parent's end. */
#include <pthread.h>

#include "connection.h"
#include "fork.h"
#include "proto/fdio.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *connections; /* all connections of this process */

static void close_fds(struct connection *c)
{
	int fds[] = {c->sock, c->doorbell, c->completion, c->memory};
	svc_close_fds(fds, sizeof(fds) / sizeof(fds[0]));
	c->sock = c->doorbell = c->completion = c->memory = -1;
}

void fork_watch(struct connection *connection)
{
	pthread_mutex_lock(&lock);
	connection->next = connections;
	connection->back = &connections;
	if (connections)
		connections->back = &connection->next;
	connections = connection;
	pthread_mutex_unlock(&lock);
}

void fork_unwatch(struct connection *connection)
{
	pthread_mutex_lock(&lock);
	if (connection->back)
		*connection->back = connection->next;
	if (connection->back && connection->next)
		connection->next->back = connection->back;
	close_fds(connection);
	pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_child(void)
{
	for (struct connection *c = connections; c; c = c->next) {
		c->back = NULL;
		close_fds(c);
		c->foreign = true;
	}
	connections = NULL;
	pthread_mutex_unlock(&lock);
}

/* This must register early: fork handlers run last-registered first, so a library that opens
 * sessions under its own lock, and takes this lock before a fork, takes it before ours. */
__attribute__((constructor(101))) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
