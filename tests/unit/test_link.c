/* SPDX-License-Identifier: Apache-2.0
 * Connections between two daemons: when they count as connected, and different protocol versions,
 * with a future daemon that still speaks today's version, and one that no longer does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "channel/carrier.h"
#include "channel/link.h"
#include "channel/tls.h"

#define NEXT   (LINK_PROTOCOL_MAX + 1)
#define WAIT_S 60

struct daemon {
	struct cluster cluster;
	unsigned received, lost, beats;
	bool is_slow; /* its carrier connects in finish_carrying */
	unsigned carries;
	uint32_t here;
};

static uv_loop_t loop;

static size_t no_address(void *out, size_t size)
{
	(void)out;
	(void)size;
	return 0;
}

static void on_message(void *owner, uint32_t from, unsigned kind, const void *body, size_t size)
{
	struct daemon *d = owner;
	(void)from;
	(void)body;
	if (kind == CONTROL_BEAT) {
		d->beats++;
		return;
	}
	assert_int_equal(kind, CONTROL_WITHDRAW);
	assert_int_equal(size, 8);
	d->received++;
}

static void on_lost(void *owner, uint32_t node, bool returns)
{
	(void)returns;
	struct daemon *d = owner;
	assert_int_equal(node, 1);
	d->lost++;
}

static void on_ready(void *owner)
{
	(void)owner;
}

static void carry(void *owner, uint32_t node, const void *address, size_t size, uint32_t here,
		  uint32_t there)
{
	struct daemon *d = owner;
	(void)address;
	(void)size;
	(void)there;
	d->carries++;
	d->here = here;
	if (!d->is_slow)
		cluster_carried(&d->cluster, node, here, false);
}

static void finish_carrying(struct daemon *d)
{
	d->is_slow = false;
	cluster_carried(&d->cluster, 1, d->here, false);
}

static bool needs(void *owner, uint32_t node)
{
	(void)owner;
	(void)node;
	return true;
}

static void visit_nodes(unsigned kind, void *body, size_t size,
			void (*visit)(void *arg, uint32_t *node), void *arg)
{
	(void)kind;
	(void)body;
	(void)size;
	(void)visit;
	(void)arg;
}

static const struct cluster_callbacks callbacks = {on_message, on_lost, on_ready,
						   carry,      needs,	visit_nodes};
static const struct carrier carrier = {.name = "none", .address = no_address};

static struct daemon *start(const char *version, uint32_t min, uint32_t max)
{
	static const uint8_t key[CLUSTER_KEY_BYTES] = {1, 2, 3};
	const struct tls_config tls = {.key = key, .key_bytes = sizeof(key)};
	struct daemon *d = calloc(1, sizeof(*d));
	char why[256];
	assert_non_null(d);
	struct cluster *c = &d->cluster;
	c->loop = &loop;
	c->n = 1;
	c->nodes = calloc(CLUSTER_NODES_MAX, sizeof(*c->nodes));
	assert_non_null(c->nodes);
	c->carrier = &carrier;
	c->site = tls_site_create(&tls, why, sizeof(why));
	assert_non_null(c->site);
	snprintf(c->nodes[0].info.version, sizeof(c->nodes[0].info.version), "%s", version);
	assert_int_equal(link_listen(c, "127.0.0.1", 0), 0);
	c->protocol_min = min;
	c->protocol_max = max;
	cluster_attach(c, &callbacks, d);
	return d;
}

static void say(struct daemon *from, const struct daemon *to)
{
	const struct node_info *at = &to->cluster.nodes[0].info;
	const uint32_t node = cluster_node_at(&from->cluster, at->address, at->port);
	assert_int_equal(node, 1);
	link_send(&from->cluster, node, CONTROL_WITHDRAW, "12345678", 8);
}

static void run_until(const unsigned *one, const unsigned *other)
{
	const uint64_t end = uv_hrtime() + WAIT_S * UINT64_C(1000000000);
	while (!*one || !*other) {
		assert_true(uv_hrtime() < end);
		uv_run(&loop, UV_RUN_ONCE);
	}
}

static void end(struct daemon *one, struct daemon *other)
{
	struct daemon *both[] = {one, other};
	cluster_close(&one->cluster);
	cluster_close(&other->cluster);
	uv_run(&loop, UV_RUN_DEFAULT);
	for (int i = 0; i < 2; i++) {
		tls_site_free(both[i]->cluster.site);
		for (uint32_t k = 0; k < both[i]->cluster.n; k++)
			free(both[i]->cluster.nodes[k].numbers);
		free(both[i]->cluster.nodes);
		free(both[i]);
	}
}

/* Even a daemon that has nothing to say shows that it lives. */
static void both_beat(void **state)
{
	(void)state;
	struct daemon *one = start("one", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
	struct daemon *other = start("other", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
	say(one, other);
	for (int i = 0; i < 3; i++) {
		one->beats = other->beats = 0;
		run_until(&one->beats, &other->beats);
	}
	assert_int_equal(one->lost + other->lost, 0);
	end(one, other);
}

static void talk(uint32_t min, uint32_t max, uint32_t expected)
{
	struct daemon *today = start("today", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
	struct daemon *other = start("other", min, max);
	say(today, other);
	say(other, today);
	run_until(&today->received, &other->received);
	assert_int_equal(today->cluster.nodes[1].protocol, expected);
	assert_int_equal(other->cluster.nodes[1].protocol, expected);
	assert_int_equal(today->lost + other->lost, 0);
	end(today, other);
}

static void the_same_version_talks(void **state)
{
	(void)state;
	talk(LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX, LINK_PROTOCOL_MAX);
}

static void the_next_version_talks(void **state)
{
	(void)state;
	talk(LINK_PROTOCOL_MAX, NEXT, LINK_PROTOCOL_MAX);
}

/* A message that one carrier sends before the other is connected would be lost. */
static void a_node_is_reached_once_both_carriers_are_connected(void **state)
{
	(void)state;
	for (int slow_opens = 0; slow_opens < 2; slow_opens++) {
		struct daemon *slow = start("slow", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
		struct daemon *quick = start("quick", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
		slow->is_slow = true;
		say(slow_opens ? slow : quick, slow_opens ? quick : slow);
		run_until(&slow->carries, &slow->carries);
		for (uint64_t end = uv_hrtime() + 50000000; uv_hrtime() < end;)
			uv_run(&loop, UV_RUN_NOWAIT);
		assert_false(quick->cluster.n > 1 && cluster_reaches(&quick->cluster, 1));
		assert_false(cluster_reaches(&slow->cluster, 1));
		finish_carrying(slow);
		while (!cluster_reaches(&quick->cluster, 1) || !cluster_reaches(&slow->cluster, 1))
			uv_run(&loop, UV_RUN_ONCE);
		run_until(slow_opens ? &quick->received : &slow->received, &slow->carries);
		assert_int_equal(slow->lost + quick->lost, 0);
		end(slow, quick);
	}
}

/* Returns the text that f logs, which the caller frees. */
static char *log_of(void (*f)(bool today_opens), bool today_opens)
{
	const int kept = dup(STDERR_FILENO), sink = memfd_create("log", MFD_CLOEXEC);
	char *text = calloc(1, 1 << 14);
	assert_non_null(text);
	assert_true(kept >= 0 && sink >= 0 && dup2(sink, STDERR_FILENO) >= 0);
	f(today_opens);
	assert_true(dup2(kept, STDERR_FILENO) >= 0);
	assert_true(pread(sink, text, (1 << 14) - 1, 0) > 0);
	close(sink);
	close(kept);
	return text;
}

/* The side that opens the connection reports the node as lost; the side that accepts it counts an
 * unidentified connection. */
static void refuse(bool today_opens)
{
	struct daemon *today = start("1.2.3", LINK_PROTOCOL_MIN, LINK_PROTOCOL_MAX);
	struct daemon *later = start("4.5.6", NEXT, NEXT + 1);
	struct daemon *opens = today_opens ? today : later, *other = today_opens ? later : today;
	say(opens, other);
	run_until(&opens->lost, &opens->lost);
	assert_int_equal(other->cluster.strangers, 1);
	assert_int_equal(other->lost + other->received + opens->received, 0);
	end(today, later);
}

static void without_a_common_version_both_logs_say_so(void **state)
{
	static const char *const texts[] = {
		"no common protocol version: the daemon at 127.0.0.1 port ",
		" (ncclsvc 4.5.6) speaks 2 to 3, this daemon (ncclsvc 1.2.3) speaks 1. Update this "
		"daemon",
		" (ncclsvc 1.2.3) speaks 1, this daemon (ncclsvc 4.5.6) speaks 2 to 3. Update that "
		"daemon",
	};
	(void)state;
	for (int i = 0; i < 2; i++) {
		char *text = log_of(refuse, i);
		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			if (!strstr(text, texts[k]))
				fail_msg("'%s' is not in:\n%s", texts[k], text);
		free(text);
	}
}

static int begin(void **state)
{
	(void)state;
	return uv_loop_init(&loop);
}

static int finish(void **state)
{
	(void)state;
	return uv_loop_close(&loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_beat),
		cmocka_unit_test(the_same_version_talks),
		cmocka_unit_test(the_next_version_talks),
		cmocka_unit_test(a_node_is_reached_once_both_carriers_are_connected),
		cmocka_unit_test(without_a_common_version_both_logs_say_so),
	};
	alarm(4 * WAIT_S);
	return cmocka_run_group_tests_name("link", tests, begin, finish);
}
