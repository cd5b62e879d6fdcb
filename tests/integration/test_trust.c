/* SPDX-License-Identifier: Apache-2.0
 * A false daemon: another user listens where the daemon is expected. */
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness_raw.h"
#include "proto/cuda/mps.h"

#define LIAR	  65533
#define LIAR_TEXT "65533"
#define LED_TO	  "/where/the/liar/leads"

enum { READY = 1 }; /* other values count the bytes that the liar has received */

static void make_place(struct daemon *d)
{
	*d = (struct daemon){0};
	snprintf(d->dir, sizeof(d->dir), "/tmp/ncclsvc-test-XXXXXX");
	CHECK(mkdtemp(d->dir));
	CHECK_EQ(chmod(d->dir, 01777), 0);
	snprintf(d->socket, sizeof(d->socket), "%s/sock", d->dir);
}

static void remove_place(const struct daemon *d)
{
	CHECK_EQ(unlink(d->socket), 0);
	CHECK_EQ(rmdir(d->dir), 0);
}

/* Replies to HELLO before it arrives: no impostor could reply earlier. */
static void welcome(int sock)
{
	struct {
		struct svc_header header;
		struct svc_hello_reply body;
	} m = {
		.header = {.length = sizeof(m),
			   .opcode = SVC_HELLO | SVC_REPLY,
			   .request_id = SVC_HELLO},
		.body = {.version = SVC_PROTOCOL_MAX,
			 .version_min = SVC_PROTOCOL_MIN,
			 .version_max = SVC_PROTOCOL_MAX,
			 .session = 1,
			 .ring_max = SVC_RING_MAX,
			 .mps = SVC_MPS_JOIN,
			 .mps_directory = LED_TO},
	};
	svc_send(sock, &m, sizeof(m), NULL, 0, 0);
}

/* Clients with a job, such as their control group, name it after HELLO. */
static void answer(int sock, const void *message)
{
	struct svc_header h;
	memcpy(&h, message, sizeof(h));
	if (h.opcode != SVC_IDENTIFY)
		return;
	h.length = sizeof(h);
	h.opcode |= SVC_REPLY;
	svc_send(sock, &h, sizeof(h), NULL, 0, 0);
}

/* Reports the number of bytes received so far, and 0 once the peer has disconnected. */
static void serve_one(struct client *me, int listener)
{
	unsigned char message[SVC_LIST_MESSAGE_MAX];
	uint64_t got = 0;
	const int sock = accept(listener, NULL, NULL);
	CHECK(sock >= 0);
	welcome(sock);
	ssize_t n;
	while ((n = recv(sock, message, sizeof(message), 0)) > 0) {
		got += (uint64_t)n;
		say(me, got);
		answer(sock, message);
	}
	close(sock);
	say(me, 0);
}

static void lie(struct client *me)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(LIAR, LIAR, LIAR), 0);
	CHECK_EQ(setresuid(LIAR, LIAR, LIAR), 0);
	memcpy(address.sun_path, me->daemon->socket, sizeof(address.sun_path));
	umask(0);
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(listener >= 0);
	CHECK_EQ(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(listener, 4), 0);
	say(me, READY);
	for (;;)
		serve_one(me, listener);
}

static ncclsvc_result try_open(const char *path, ncclsvc_session **session)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .socket = path, .no_ring = true, .timeout_ms = WAIT_MS};
	unsetenv(MPS_VARIABLE);
	unsetenv(MPS_LED_VARIABLE);
	return ncclsvc_open(&options, session);
}

static void is_not_deceived(struct client *me)
{
	ncclsvc_session *s = NULL;
	unsetenv("NCCLSVC_DAEMON_USER");
	CHECK_RESULT(try_open(me->daemon->socket, &s), NCCLSVC_PERMISSION);
	CHECK(!s);
	CHECK(strstr(ncclsvc_last_error(), "uid " LIAR_TEXT " listens at "));
	CHECK(strstr(ncclsvc_last_error(), me->daemon->socket));
	CHECK(strstr(ncclsvc_last_error(), "NCCLSVC_DAEMON_USER=" LIAR_TEXT));
	CHECK(!getenv(MPS_VARIABLE));
}

static void a_false_daemon_gets_nothing(void **state)
{
	struct daemon d;
	struct client liar, trainer;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can be another user");
	make_place(&d);
	clients_start(&liar, 1, &d, lie, NULL);
	CHECK_EQ(hear(&liar), READY);
	clients_start(&trainer, 1, &d, is_not_deceived, NULL);
	CHECK_EQ(hear(&liar), 0);
	clients_end(&trainer, 1);
	client_kill(&liar);
	remove_place(&d);
}

/* The library trusts the user in NCCLSVC_DAEMON_USER and checks it again on a reattach. */
static void believes_who_is_named(struct client *me)
{
	static const char *const not_him[] = {"1", "root", "no such user", ""};
	ncclsvc_session *s = NULL;
	for (size_t i = 0; i < sizeof(not_him) / sizeof(not_him[0]); i++) {
		CHECK_EQ(setenv("NCCLSVC_DAEMON_USER", not_him[i], 1), 0);
		CHECK_RESULT(try_open(me->daemon->socket, &s), NCCLSVC_PERMISSION);
	}
	CHECK_EQ(setenv("NCCLSVC_DAEMON_USER", LIAR_TEXT, 1), 0);
	CHECK_OK(try_open(me->daemon->socket, &s));
	CHECK(!strcmp(getenv(MPS_VARIABLE), LED_TO));
	say(me, READY);
	CHECK_RESULT(ncclsvc_dispatch(s, WAIT_MS), NCCLSVC_DAEMON_LOST);
	unsetenv("NCCLSVC_DAEMON_USER");
	CHECK_RESULT(ncclsvc_reattach(s, WAIT_MS), NCCLSVC_PERMISSION);
	CHECK_RESULT(ncclsvc_dispatch(s, 0), NCCLSVC_DAEMON_LOST);
	ncclsvc_close(s);
}

static void another_users_daemon_is_named(void **state)
{
	struct daemon d;
	struct client liar, trainer;
	uint64_t got;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can be another user");
	make_place(&d);
	clients_start(&liar, 1, &d, lie, NULL);
	CHECK_EQ(hear(&liar), READY);
	clients_start(&trainer, 1, &d, believes_who_is_named, NULL);
	for (int refused = 0; refused < 4; refused++)
		CHECK_EQ(hear(&liar), 0);
	got = hear(&liar); /* the HELLO message */
	CHECK_EQ(got, sizeof(struct svc_header) + sizeof(struct svc_hello));
	CHECK_EQ(hear(&trainer), READY);
	/* The next liar replaces this one, as in any directory like /tmp. The kernel may close
	 * this liar's connection before its listening socket, so the old path is unlinked first. */
	CHECK_EQ(unlink(d.socket), 0);
	client_kill(&liar);
	clients_start(&liar, 1, &d, lie, NULL);
	CHECK_EQ(hear(&liar), READY);
	CHECK_EQ(hear(&liar), 0);
	clients_end(&trainer, 1);
	client_kill(&liar);
	remove_place(&d);
}

/* The kernel names the process that called listen: systemd's user, if systemd passes the socket. */
static void trusts_who_listened(struct client *me)
{
	ncclsvc_session *s = NULL;
	CHECK_EQ(setgroups(0, NULL), 0);
	CHECK_EQ(setresgid(LIAR + 1, LIAR + 1, LIAR + 1), 0);
	CHECK_EQ(setresuid(LIAR + 1, LIAR + 1, LIAR + 1), 0);
	CHECK_OK(try_open(me->daemon->socket, &s));
	ncclsvc_close(s);
}

static void another_user_trusts_roots_daemon(void **state)
{
	struct daemon d;
	struct client trainer;
	(void)state;
	if (getuid() != 0)
		skip_because("only root can be another user");
	daemon_start(&d, "--access", "any", NULL);
	clients_start(&trainer, 1, &d, trusts_who_listened, NULL);
	clients_end(&trainer, 1);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_false_daemon_gets_nothing),
		TEST(another_users_daemon_is_named),
		TEST(another_user_trusts_roots_daemon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
