/* SPDX-License-Identifier: Apache-2.0
 * A daemon that is trusted, and broken: its messages, and what it writes into the ring, are changed
 * at random on their way. The library may say anything of that, but not crash, and not hang.
 *
 * With NCCLSVC_TEST_SEEDS=N, so many schedules are tried instead of a few; NCCLSVC_TEST_SEED is the
 * first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness_raw.h"
#include "ncclsvc_plan.h"
#include "ncclsvc_world.h"
#include "relay.h"

#define SEEDS	   60
#define TIMEOUT_MS 300
#define WORDS	   1000
#define SEED_MS	   120000 /* for a process; a request may wait 10 s for its reply, several times */

/* ---- What is changed ---- */

static uint64_t state;
static uint32_t rarity; /* of so many messages, one is changed */
static struct {
	char *at;
	size_t size;
} ring;

static uint32_t draw(uint32_t n)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 33) % n;
}

static uint32_t a_word(uint32_t was)
{
	static const uint32_t edges[] = {0, 1, UINT32_MAX, INT32_MAX, 0x80000000, 7, 4096, 65536};
	switch (draw(4)) {
	case 0:
		return edges[draw(sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return was + 1;
	case 2:
		return was - 1;
	default:
		return (uint32_t)(state >> 20);
	}
}

static void change_word(char *bytes, size_t size)
{
	uint32_t word;
	if (size < sizeof(word))
		return;
	char *at = bytes + draw((uint32_t)(size / sizeof(word))) * sizeof(word);
	memcpy(&word, at, sizeof(word));
	word = a_word(word);
	memcpy(at, &word, sizeof(word));
}

static void keep_ring(const struct svc_header *h, const int *fds, unsigned nfds)
{
	struct stat st;
	if (h->opcode != (SVC_ATTACH | SVC_REPLY) || nfds < 1 || fstat(fds[0], &st) || !st.st_size)
		return;
	if (ring.at)
		munmap(ring.at, ring.size);
	ring.size = (size_t)st.st_size;
	ring.at = mmap(NULL, ring.size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (ring.at == MAP_FAILED)
		ring.at = NULL;
}

static void change_length(unsigned char *message, size_t *length, struct svc_header *h)
{
	const size_t was = *length;
	*length = sizeof(*h) + draw((uint32_t)(was + 64 - sizeof(*h)));
	if (*length > was)
		memset(message + was, (int)draw(256), *length - was);
	if (draw(2))
		h->length = (uint32_t)*length;
}

static void change_message(unsigned char *message, size_t *length, int *fds, unsigned *nfds,
			   struct svc_header *h)
{
	switch (draw(12)) {
	case 0:
		change_length(message, length, h);
		break;
	case 1:
		h->result = (int32_t)a_word((uint32_t)h->result);
		break;
	case 2:
		h->opcode = (uint16_t)(draw(SVC_OPCODE_END) | SVC_REPLY);
		break;
	case 3:
		if (*nfds)
			svc_close_fds(&fds[--*nfds], 1);
		break;
	case 4:
		if (*nfds > 1) {
			const int first = fds[0];
			fds[0] = fds[*nfds - 1];
			fds[*nfds - 1] = first;
		}
		break;
	default:
		for (uint32_t n = 1 + draw(3); n; n--)
			change_word((char *)message + sizeof(*h), *length - sizeof(*h));
	}
}

static void mangle(unsigned char *message, size_t *length, int *fds, unsigned *nfds)
{
	struct svc_header h;
	if (*length < sizeof(h) || *length > SVC_LIST_MESSAGE_MAX - 64)
		return;
	memcpy(&h, message, sizeof(h));
	keep_ring(&h, fds, *nfds);
	if (ring.at && !draw(rarity))
		change_word(ring.at, draw(2) ? SVC_PAGE : ring.size);
	if (draw(rarity))
		return;
	change_message(message, length, fds, nfds, &h);
	memcpy(message, &h, sizeof(h));
}

/* ---- What a trainer does ---- */

static void list_all(ncclsvc_session *s)
{
	ncclsvc_daemon_info info;
	uint64_t n64;
	size_t n;
#define LIST(function, type)                                                                       \
	do {                                                                                       \
		type *list;                                                                        \
		if (!function(s, &list, &n))                                                       \
			ncclsvc_list_free(list);                                                   \
	} while (0)
	LIST(ncclsvc_list_sessions, ncclsvc_session_info);
	LIST(ncclsvc_list_comms, ncclsvc_comm_info);
	LIST(ncclsvc_list_members, ncclsvc_member_info);
	LIST(ncclsvc_list_tasks, ncclsvc_task_info);
	LIST(ncclsvc_list_regions, ncclsvc_region_info);
	LIST(ncclsvc_list_devices, ncclsvc_device_info);
	LIST(ncclsvc_list_plans, ncclsvc_plan_info);
	ncclsvc_daemon(s, &info);
	ncclsvc_cancel_task(s, 1, &n64);
}

static void work(ncclsvc_session *s, ncclsvc_comm *comm)
{
	static int32_t from[WORDS], to[WORDS];
	ncclsvc_task task;
	void *shared = NULL;
	if (ncclsvc_mem_alloc(s, sizeof(from), &shared))
		shared = from;
	for (int i = 0; i < 20; i++) {
		if (!ncclsvc_all_reduce(i % 2 ? from : shared, to, WORDS, NCCLSVC_INT32,
					NCCLSVC_SUM, comm, &task))
			ncclsvc_wait(s, task, TIMEOUT_MS);
		if (!ncclsvc_all_gather(from, to, WORDS / 2, NCCLSVC_INT32, comm, &task))
			ncclsvc_test(s, task);
		ncclsvc_dispatch(s, 0);
	}
	ncclsvc_wait_all(s, TIMEOUT_MS);
	ncclsvc_comm_error(comm);
	if (shared != from)
		ncclsvc_mem_free(s, shared);
}

static void plan(ncclsvc_comm *comm)
{
	ncclsvc_plan *p;
	if (ncclsvc_plan_start(comm, &p))
		return;
	ncclsvc_plan_group_start(p);
	ncclsvc_plan_send(p, 4, NCCLSVC_INT32, 0);
	ncclsvc_plan_recv(p, 4, NCCLSVC_INT32, 0);
	ncclsvc_plan_group_end(p);
	if (!ncclsvc_plan_end(p, TIMEOUT_MS))
		ncclsvc_plan_launch(p);
	ncclsvc_plan_reset(p, TIMEOUT_MS);
}

static void train(struct client *me)
{
	ncclsvc_session *s;
	ncclsvc_comm *comm, *part, *world;
	const ncclsvc_options options = {.size = sizeof(options),
					 .socket = me->daemon->socket,
					 .no_ring = *(const unsigned long *)me->arg % 4 == 3,
					 .ring_entries = 64,
					 .timeout_ms = TIMEOUT_MS};
	if (ncclsvc_open(&options, &s))
		return;
	if (!ncclsvc_comm_join(s, &me->id, 1, 0, TIMEOUT_MS, &comm)) {
		work(s, comm);
		if (!ncclsvc_comm_split(comm, 0, 0, TIMEOUT_MS, &part))
			work(s, part);
		plan(comm);
	}
	if (!ncclsvc_comm_world(s, -1, TIMEOUT_MS, &world)) {
		work(s, world);
		ncclsvc_comm_leave(world);
	}
	list_all(s);
	if (!ncclsvc_reattach(s, TIMEOUT_MS))
		list_all(s);
	ncclsvc_close(s);
}

/* ---- The test ---- */

static unsigned long number(const char *variable, unsigned long otherwise)
{
	const char *text = getenv(variable);
	return text ? strtoul(text, NULL, 10) : otherwise;
}

static void a_trainer_of_a_broken_daemon_survives(void **unused)
{
	const unsigned long n = number("NCCLSVC_TEST_SEEDS", SEEDS);
	const unsigned long first = number("NCCLSVC_TEST_SEED", 1);
	struct daemon d;
	(void)unused;
	time_limit((unsigned)(120 + n * 60));
	daemon_start(&d, "--ranks", "1", NULL);
	for (unsigned long seed = first; seed < first + n; seed++) {
		struct relay relay;
		struct client trainer;
		if (n > SEEDS)
			print_message("seed %lu\n", seed);
		state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
		rarity = 4u << seed % 5;
		relay_start_mangling(&relay, &d, mangle);
		clients_start(&trainer, 1, &relay.behind, train, &seed);
		clients_end_within(&trainer, 1, SEED_MS);
		relay_stop(&relay);
	}
	daemon_kill(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_trainer_of_a_broken_daemon_survives),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
