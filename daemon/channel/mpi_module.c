/* SPDX-License-Identifier: Apache-2.0
 * The module ncclsvc-mpi.so: the daemon's interface to Open MPI. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/timings.h"
#include "mpi_network.h"

static MPI_Comm world = MPI_COMM_NULL;

/* Requests in progress, in several arrays, since MPI requires an array of requests. */
static MPI_Request *requests;
static void **cookies;
static bool *receives;
static double *dropped; /* when it was dropped, in seconds; 0: it was not */
static unsigned active, room, ndropped;

/* Control messages are received into a ring, in the order of its slots. */
static struct {
	MPI_Request *requests;
	char *memory;
	size_t bytes;
	unsigned slots, head;
	bool taken; /* the caller holds the head's message */
} ears;

/* Never 0, unlike MPI_Wtime. */
static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1 + (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int complain(char *why, size_t size, const char *what, int error)
{
	char text[MPI_MAX_ERROR_STRING];
	int length = 0;
	MPI_Error_string(error, text, &length);
	snprintf(why, size, "%s: %.*s", what, length, text);
	return -1;
}

static int find_locals(struct mpi_place *place)
{
	MPI_Comm local;
	int error = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, place->node, MPI_INFO_NULL,
					&local);
	if (error)
		return error;
	MPI_Comm_rank(local, &place->local);
	MPI_Comm_size(local, &place->locals);
	return MPI_Comm_free(&local);
}

static int start(const struct mpi_network *network, struct mpi_place *place, char *why, size_t size)
{
	const bool all_connected = mpi_network_choose(network);
	int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &place->thread_level);
	if (error)
		return complain(why, size, "MPI_Init_thread", error);
	if (all_connected)
		mpi_network_close_ports();
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (place->thread_level < MPI_THREAD_SERIALIZED) {
		snprintf(why, size,
			 "MPI provides thread level %d, but the daemon needs %d "
			 "(MPI_THREAD_SERIALIZED)",
			 place->thread_level, MPI_THREAD_SERIALIZED);
		return -1;
	}
	error = MPI_Comm_dup(MPI_COMM_WORLD, &world);
	if (error)
		return complain(why, size, "MPI_Comm_dup", error);
	MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
	MPI_Comm_rank(world, &place->node);
	MPI_Comm_size(world, &place->nodes);
	error = find_locals(place);
	if (error)
		return complain(why, size, "MPI_Comm_split_type", error);
	int *bound = NULL, known = 0;
	MPI_Comm_get_attr(world, MPI_TAG_UB, &bound, &known);
	place->tag_max = known && bound ? *bound : 32767;
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int length = 0;
	MPI_Get_library_version(library, &length);
	library[strcspn(library, ",\n")] = '\0';
	snprintf(place->library, sizeof(place->library), "%.*s", (int)sizeof(place->library) - 1,
		 library);
	return 0;
}

static int allgather(const void *mine, void *all, size_t bytes)
{
	return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world) ? -1 : 0;
}

/* ---- Requests in progress ---- */

static bool make_room(void)
{
	if (active < room)
		return true;
	unsigned more = room ? room * 2 : 64;
	MPI_Request *r = realloc(requests, more * sizeof(*r));
	if (r)
		requests = r;
	void **c = realloc(cookies, more * sizeof(*c));
	if (c)
		cookies = c;
	bool *b = realloc(receives, more * sizeof(*b));
	if (b)
		receives = b;
	double *d = realloc(dropped, more * sizeof(*d));
	if (d)
		dropped = d;
	if (!r || !c || !b || !d)
		return false;
	room = more;
	return true;
}

static int post(void *memory, size_t bytes, int node, int tag, void *cookie, bool receive)
{
	if (bytes > INT_MAX || !make_room())
		return -1;
	MPI_Request *r = &requests[active];
	int error = receive ? MPI_Irecv(memory, (int)bytes, MPI_BYTE, node, tag, world, r)
			    : MPI_Isend(memory, (int)bytes, MPI_BYTE, node, tag, world, r);
	if (error)
		return -1;
	cookies[active] = cookie;
	receives[active] = receive;
	dropped[active] = 0;
	active++;
	return 0;
}

static int send_bytes(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	return post((void *)(uintptr_t)from, bytes, node, tag, cookie, false);
}

static int say(const void *from, size_t bytes, int node, void *cookie)
{
	int over = 0;
	if (send_bytes(from, bytes, node, CARRIER_TAG_CONTROL, cookie))
		return -1;
	if (MPI_Test(&requests[active - 1], &over, MPI_STATUS_IGNORE)) {
		active--;
		return -1;
	}
	active -= over ? 1 : 0;
	return over;
}

static int receive_bytes(void *to, size_t bytes, int node, int tag, void *cookie)
{
	return post(to, bytes, node, tag, cookie, true);
}

static void remove_at(unsigned i)
{
	active--;
	ndropped -= dropped[i] > 0;
	dropped[i] = dropped[active];
	requests[i] = requests[active];
	cookies[i] = cookies[active];
	receives[i] = receives[active];
}

#define POLL_MAX 32

static int descending(const void *a, const void *b)
{
	return *(const int *)b - *(const int *)a;
}

/* A receive that has matched a message cannot be cancelled, and may never end without the sender.
 */
static unsigned give_up(struct carrier_done *done, unsigned max)
{
	const double now = seconds();
	unsigned n = 0;
	for (unsigned i = active; i-- > 0 && n < max;) {
		if (!dropped[i] || now - dropped[i] < MPI_DROP_SECONDS)
			continue;
		done[n++] = (struct carrier_done){.cookie = cookies[i], .failed = true};
		MPI_Request_free(&requests[i]);
		remove_at(i);
	}
	return n;
}

static unsigned poll_done(struct carrier_done *done, unsigned max)
{
	static MPI_Status statuses[POLL_MAX];
	int indices[POLL_MAX], n = 0;
	unsigned some = active < POLL_MAX ? active : POLL_MAX;
	static unsigned from;
	if (!active)
		return 0;
	if (some > max)
		some = max;
	/* Some at a time, which bounds the arrays above. */
	if (from + some > active)
		from = 0;
	int error = MPI_Testsome((int)some, requests + from, &n, indices, statuses);
	if (n == MPI_UNDEFINED || n < 0)
		n = 0;
	for (int i = 0; i < n; i++) {
		unsigned at = from + (unsigned)indices[i];
		int count = 0, cancelled = 0;
		MPI_Test_cancelled(&statuses[i], &cancelled);
		bool failed = cancelled ||
			      (error == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR != MPI_SUCCESS);
		if (receives[at] && !failed)
			MPI_Get_count(&statuses[i], MPI_BYTE, &count);
		done[i] = (struct carrier_done){cookies[at], count > 0 ? (size_t)count : 0, failed};
	}
	qsort(indices, (size_t)n, sizeof(indices[0]), descending);
	for (int i = 0; i < n; i++)
		remove_at(from + (unsigned)indices[i]);
	if (!n)
		from = from + some < active ? from + some : 0;
	if (!n && ndropped)
		return give_up(done, max);
	return (unsigned)n;
}

static void drop(void *cookie)
{
	for (unsigned i = 0; i < active; i++) {
		if (cookies[i] != cookie)
			continue;
		if (receives[i]) {
			MPI_Cancel(&requests[i]);
			ndropped += !dropped[i];
			dropped[i] = seconds();
		} else {
			MPI_Request_free(&requests[i]);
			remove_at(i);
		}
		return;
	}
}

/* ---- Control messages ---- */

static int post_ear(unsigned slot)
{
	return MPI_Irecv(ears.memory + slot * ears.bytes, (int)ears.bytes, MPI_BYTE, MPI_ANY_SOURCE,
			 CARRIER_TAG_CONTROL, world, &ears.requests[slot]);
}

static int listen_for(unsigned slots, size_t bytes)
{
	ears.requests = calloc(slots, sizeof(*ears.requests));
	ears.memory = malloc(slots * bytes);
	ears.slots = slots;
	ears.bytes = bytes;
	if (!ears.requests || !ears.memory)
		return -1;
	for (unsigned i = 0; i < slots; i++)
		if (post_ear(i))
			return -1;
	return 0;
}

static const void *hear(size_t *bytes, int *node)
{
	MPI_Status status;
	int flag = 0, count = 0;
	if (ears.taken) {
		ears.taken = false;
		post_ear(ears.head);
		ears.head = (ears.head + 1) % ears.slots;
	}
	if (MPI_Test(&ears.requests[ears.head], &flag, &status) || !flag)
		return NULL;
	MPI_Get_count(&status, MPI_BYTE, &count);
	ears.taken = true;
	*bytes = count > 0 ? (size_t)count : 0;
	*node = status.MPI_SOURCE;
	return ears.memory + ears.head * ears.bytes;
}

static void finish(bool alone)
{
	int finalized = 0;
	MPI_Finalized(&finalized);
	if (finalized)
		return;
	for (unsigned i = 0; i < ears.slots; i++) {
		if (ears.taken && i == ears.head)
			continue;
		MPI_Cancel(&ears.requests[i]);
		MPI_Request_free(&ears.requests[i]);
	}
	if (!alone)
		MPI_Finalize();
}

static size_t no_address(void *out, size_t size)
{
	(void)out;
	(void)size;
	return 0;
}

__attribute__((visibility("default"))) const struct mpi_start ncclsvc_mpi = {
	.version = CARRIER_VERSION,
	.start = start,
	.allgather = allgather,
	.carrier = {.name = "MPI",
		    .address = no_address,
		    .send = send_bytes,
		    .say = say,
		    .receive = receive_bytes,
		    .poll = poll_done,
		    .drop = drop,
		    .listen = listen_for,
		    .hear = hear,
		    .finish = finish},
};
