/* SPDX-License-Identifier: Apache-2.0
 * Protocol versions, with a made-up next one: newer clients and newer daemons speak the newest
 * common version, or learn both ranges. */
#include <string.h>

#include "harness_raw.h"
#include "version_relay.h"

#define NEXT (SVC_PROTOCOL_MAX + 1)

static unsigned listed_version(ncclsvc_session *s)
{
	ncclsvc_session_info *list;
	size_t n;
	CHECK_OK(ncclsvc_list_sessions(s, &list, &n));
	CHECK_EQ(n, 1);
	const unsigned version = list[0].protocol;
	ncclsvc_list_free(list);
	return version;
}

/* A library that also speaks the next version works with today's daemon. */
static void a_newer_library_works(void **state)
{
	struct daemon d;
	struct relay relay;
	(void)state;
	daemon_start(&d, NULL);
	relay_start(&relay, &d, SVC_PROTOCOL_MIN, NEXT);
	for (int no_ring = 0; no_ring < 2; no_ring++) {
		const ncclsvc_options o = {
			.size = sizeof(o), .socket = relay.behind.socket, .no_ring = no_ring};
		ncclsvc_session *s;
		ncclsvc_comm *comm;
		ncclsvc_unique_id id;
		CHECK_OK(ncclsvc_open(&o, &s));
		CHECK_EQ(listed_version(s), SVC_PROTOCOL_MAX);
		CHECK_OK(ncclsvc_unique_id_create(&id));
		CHECK_OK(ncclsvc_comm_join(s, &id, 1, 0, WAIT_MS, &comm));
		check_usable(s, comm);
		ncclsvc_close(s);
	}
	relay_stop(&relay);
	daemon_stop(&d);
}

/* Today's daemon has no requests of the next version. */
static void requests_of_the_next_version_are_refused(void **state)
{
	struct daemon d;
	struct raw r;
	(void)state;
	daemon_start(&d, NULL);
	raw_open(&r, &d);
	raw_refused(&r, SVC_OPCODE_END, NULL, 0, NULL, 0, NCCLSVC_PROTOCOL,
		    "version 1 has no opcode");
	raw_join_alone(&r);
	raw_close(&r);
	daemon_stop(&d);
}

static void a_future_client_gets_both_ranges(void **state)
{
	struct daemon d;
	struct relay relay;
	struct raw r;
	struct raw_reply reply;
	ncclsvc_session *s = NULL;
	(void)state;
	daemon_start(&d, NULL);
	const struct svc_hello hello = {.version_min = 7, .version_max = 9, .name = "future"};
	raw_connect(&r, &d);
	raw_call(&r, SVC_HELLO, &hello, sizeof(hello), NULL, 0, &reply);
	CHECK_EQ(reply.header.result, NCCLSVC_VERSION);
	CHECK_EQ(reply.error.client_version_min, 7);
	CHECK_EQ(reply.error.client_version_max, 9);
	CHECK(strstr(reply.error.text, "versions 7 to 9, this daemon 1 to 1"));
	raw_ends(&r, NCCLSVC_VERSION);
	raw_close(&r);
	relay_start(&relay, &d, 7, 9);
	const ncclsvc_options o = {.size = sizeof(o), .socket = relay.behind.socket};
	CHECK_RESULT(ncclsvc_open(&o, &s), NCCLSVC_VERSION);
	CHECK(strstr(ncclsvc_last_error(), "daemon speaks protocol versions 1 to 1, this library"));
	relay_stop(&relay);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_newer_library_works),
		TEST(requests_of_the_next_version_are_refused),
		TEST(a_future_client_gets_both_ranges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
