/* SPDX-License-Identifier: Apache-2.0
 * Closing connections with unread messages, for a user whose close blocks; and what may be read
 * from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "account/account.h"
#include "base/config.h"
#include "proto/fdio.h"
#include "session/waiting_messages.h"

static void ignore(void *arg)
{
	(void)arg;
}

/* Closing pair[0] blocks until pair[1] is read. */
static void make_slow(int pair[2])
{
	static const char data[1 << 16];
	const struct linger linger = {1, 600};
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(getsockname(server, (struct sockaddr *)&address, &size), 0);
	assert_int_equal(connect(pair[0], (struct sockaddr *)&address, size), 0);
	pair[1] = accept(server, NULL, NULL);
	assert_true(pair[1] >= 0);
	assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	while (send(pair[0], data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	close(server);
}

static void let_go(int fd)
{
	static char data[1 << 16];
	while (read(fd, data, sizeof(data)) > 0)
		;
	close(fd);
}

static void send_bytes(int fd, size_t n)
{
	static const char message[64];
	assert_int_equal(svc_send(fd, message, n, NULL, 0, 0), 0);
}

static void send_fd(int fd, int passed)
{
	assert_int_equal(svc_send(fd, "x", 1, &passed, 1, 0), 0);
}

/* Counts what a client has sent, and this side has not read. */
struct connection {
	int here, client;
};

static struct connection connect_client(void)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	return (struct connection){pair[0], pair[1]};
}

static bool has_ended(int fd, int ms)
{
	struct pollfd p = {.fd = fd};
	return poll(&p, 1, ms) == 1 && p.revents & POLLHUP;
}

static struct accounts all;

static struct account *open_user(void)
{
	static const struct config config = {.sessions_max = 16, .user_sessions_max = 16};
	accounts_init(&all, &config, ignore, NULL);
	struct account *a = account_get(&all, &(struct tenant){.uid = 1000});
	assert_non_null(a);
	return a;
}

/* Only a connection that holds a descriptor waits behind the user's blocked close, and counts. */
static void connections_without_descriptors_close_at_once(void **state)
{
	struct account *a = open_user();
	int slow[2], passed[2];
	(void)state;
	make_slow(slow);
	account_close(a, &slow[0], 1);
	assert_int_equal(a->held[SHARE_FDS], 1);
	struct connection plain = connect_client(), none = connect_client();
	send_bytes(plain.client, 64);
	send_bytes(plain.client, 0);
	send_bytes(plain.client, 64);
	connection_close(a, plain.here);
	connection_close(a, none.here);
	assert_true(has_ended(plain.client, 0));
	assert_true(has_ended(none.client, 0));
	assert_int_equal(a->held[SHARE_FDS], 1);
	struct connection bad = connect_client();
	assert_int_equal(pipe2(passed, O_CLOEXEC), 0);
	send_bytes(bad.client, 0);
	send_bytes(bad.client, 64);
	send_fd(bad.client, passed[1]);
	close(passed[1]);
	connection_close(a, bad.here);
	assert_int_equal(a->held[SHARE_FDS], 2);
	assert_false(has_ended(passed[0], 0));
	let_go(slow[1]);
	assert_true(has_ended(passed[0], -1));
	close(plain.client);
	close(none.client);
	close(bad.client);
	close(passed[0]);
	accounts_fini(&all);
}

static void a_user_without_room_may_send_no_descriptors(void **state)
{
	struct account *a = open_user();
	struct connection c = connect_client();
	char text[SVC_TEXT_BYTES], byte;
	(void)state;
	send_fd(c.client, STDIN_FILENO);
	assert_int_equal(connection_may_read(a, c.here, text), 0);
	while (account_take(a, SHARE_FDS, 1, text))
		;
	assert_int_equal(connection_may_read(a, c.here, text), -EMFILE);
	assert_non_null(strstr(text, "LimitNOFILE"));
	assert_int_equal(recv(c.here, &byte, 1, 0), 1);
	assert_int_equal(connection_may_read(a, c.here, text), -EAGAIN);
	send_bytes(c.client, 0);
	assert_int_equal(connection_may_read(a, c.here, text), 0);
	assert_int_equal(recv(c.here, &byte, 1, 0), 0);
	send_bytes(c.client, 64);
	assert_int_equal(connection_may_read(a, c.here, text), 0);
	assert_int_equal(recv(c.here, &byte, 1, 0), 1);
	close(c.client);
	assert_int_equal(connection_may_read(a, c.here, text), 0); /* the end */
	close(c.here);
	accounts_fini(&all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connections_without_descriptors_close_at_once),
		cmocka_unit_test(a_user_without_room_may_send_no_descriptors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
