/* SPDX-License-Identifier: Apache-2.0
 * The functions that create communicators. */
#include <stdlib.h>
#include <string.h>

#include "nccl_config.h"
#include "nccl_group.h"
#include "proto/wire_comm.h"

#define ID_MS 2000 /* how long to wait for the daemon's id */

/* Ranks on other nodes find each other by an id that a daemon has made. False: none was asked. */
static bool request_id(ncclsvc_unique_id *id)
{
	const ncclsvc_options options = {
		.size = sizeof(options), .no_ring = true, .timeout_ms = ID_MS};
	ncclsvc_session *session;
	if (ncclsvc_open(&options, &session))
		return false;
	const ncclsvc_result r = ncclsvc_unique_id_request(session, id);
	ncclsvc_close(session);
	return !r;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	ncclsvc_unique_id random;
	if (!id)
		return fail(ncclInvalidArgument, "ncclGetUniqueId: the id is NULL");
	ncclsvc_result r = request_id(&random) ? NCCLSVC_OK : ncclsvc_unique_id_create(&random);
	if (r)
		return fail_service(r);
	memcpy(id->internal, random.bytes, sizeof(random.bytes));
	return ncclSuccess;
}
NCCL_ALIAS(ncclGetUniqueId);

static struct start *start_new(enum start_kind kind, int device, const struct config *config,
			       ncclComm_t *out)
{
	struct start *s = calloc(1, sizeof(*s));
	if (s)
		s->comm = handle_new(device, config->blocking, config->name);
	if (s && s->comm) {
		s->comm->max_ctas = config->max_ctas;
		s->comm->zero_ctas = config->zero_ctas;
	}
	if (!s || !s->comm) {
		free(s);
		fail(ncclSystemError, "out of memory");
		return NULL;
	}
	s->kind = kind;
	s->nonblocking = !config->blocking;
	s->out = out;
	handle_ref(s->comm); /* the user's reference */
	return s;
}

/* Frees a start that has not begun. */
static void start_free(struct start *s)
{
	handle_unref(s->comm);
	handle_unref(s->comm);
	free(s);
}

static ncclResult_t check_ranks(const char *function, int nranks, int rank)
{
	if (nranks < 1 || rank < 0 || rank >= nranks)
		return fail(ncclInvalidArgument, "%s: rank %d is not one of %d ranks", function,
			    rank, nranks);
	return ncclSuccess;
}

static ncclResult_t join(const char *function, ncclComm_t *comm, int nranks, const ncclUniqueId *id,
			 int rank, int device, const ncclConfig_t *config)
{
	struct config c;
	if (!comm)
		return fail(ncclInvalidArgument, "%s: comm is NULL", function);
	*comm = NULL;
	ncclResult_t r = check_ranks(function, nranks, rank);
	if (!r)
		r = config_read(config, NULL, function, &c);
	if (r)
		return r;
	struct start *s = start_new(START_JOIN, device, &c, comm);
	if (!s)
		return ncclSystemError;
	s->id = *id;
	s->nranks = nranks;
	s->rank = rank;
	return group_begin_start(s);
}

static ncclResult_t join_here(const char *function, ncclComm_t *comm, int nranks,
			      const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
	int device;
	ncclResult_t r = device_current(&device);
	return r ? r : join(function, comm, nranks, id, rank, device, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return join_here("ncclCommInitRank", comm, nranks, &id, rank, NULL);
}
NCCL_ALIAS(ncclCommInitRank);

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	return join_here("ncclCommInitRankConfig", comm, nranks, &id, rank, config);
}
NCCL_ALIAS(ncclCommInitRankConfig);

/* All ranks pass the same ids, and the first one is enough: an id is only a name, without a
 * listener. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids,
				      ncclUniqueId *ids, ncclConfig_t *config)
{
	if (nids < 1 || nids > nranks || !ids)
		return fail(ncclInvalidArgument,
			    "ncclCommInitRankScalable: %d ids for %d ranks: use 1 to nranks ids",
			    nids, nranks);
	return join_here("ncclCommInitRankScalable", comm, nranks, &ids[0], rank, config);
}
NCCL_ALIAS(ncclCommInitRankScalable);

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
	ncclUniqueId id;
	if (!comms || n < 1)
		return fail(ncclInvalidArgument, "ncclCommInitAll: comms is %p, ndev is %d",
			    (void *)comms, n);
	for (int i = 0; i < n; i++)
		comms[i] = NULL;
	ncclResult_t r = ncclGetUniqueId(&id);
	if (!r)
		r = ncclGroupStart();
	if (r)
		return r;
	for (int i = 0; !r && i < n; i++)
		r = join("ncclCommInitAll", &comms[i], n, &id, i, devices ? devices[i] : i, NULL);
	ncclResult_t ended = ncclGroupEnd();
	r = r ? r : ended;
	for (int i = 0; r && !group_is_open() && i < n; i++) {
		ncclCommAbort(comms[i]);
		comms[i] = NULL;
	}
	return r;
}
NCCL_ALIAS(ncclCommInitAll);

/* ---- From existing communicators ---- */

/* Beyond the numbers of shrinks. */
#define SPLITS (UINT64_C(1) << 63)
#define GROWS  (UINT64_C(1) << 62)

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Derives an id that all remaining ranks get without any exchange, because it depends only on what
 * they all know. The parent's id is secret and random, so this one is too; its members gather where
 * the parent's did. out: the excluded ranks; NULL: none. */
static void derived_id(const ncclUniqueId *parent, uint64_t nth, const bool *out, int nranks,
		       ncclUniqueId *id)
{
	uint64_t words[sizeof(id->internal) / 8], h = mix(nth + 1);
	struct svc_rendezvous at;
	memcpy(words, parent->internal, sizeof(words));
	for (int i = 0; i < nranks; i++)
		h = mix(h + (out && out[i] ? 2 : 1));
	for (size_t i = 0; i < sizeof(words) / 8; i++)
		h = mix(h ^ words[i]);
	for (size_t i = 0; i < sizeof(words) / 8; i++)
		words[i] = mix(words[i] + h + i);
	memcpy(id->internal, words, sizeof(words));
	memcpy(&at, parent->internal + SVC_RENDEZVOUS_AT, sizeof(at));
	if (at.tag == SVC_RENDEZVOUS_TAG)
		memcpy(id->internal + SVC_RENDEZVOUS_AT, &at, sizeof(at));
}

/* A revoked communicator cannot be split any more, so its ranks first join another one. */
static ncclResult_t enter_to_split(ncclComm_t comm, struct start *s)
{
	ncclResult_t r = handle_check(comm, "ncclCommSplit");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	s->anew = comm->revoked && comm->state == COMM_LEFT && !comm->aborted;
	if (s->anew)
		derived_id(&comm->id, SPLITS + comm->splits++, NULL, comm->nranks, &s->id);
	s->nranks = comm->nranks;
	s->rank = comm->rank;
	pthread_mutex_unlock(&comm->lock);
	return s->anew ? ncclSuccess : handle_usable(comm, "ncclCommSplit");
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int colour, int key, ncclComm_t *newcomm,
			   ncclConfig_t *config)
{
	struct config c;
	if (!newcomm)
		return fail(ncclInvalidArgument, "ncclCommSplit: newcomm is NULL");
	*newcomm = NULL;
	if (colour < NCCL_SPLIT_NOCOLOR)
		return fail(ncclInvalidArgument,
			    "ncclCommSplit: the colour is %d: use 0 or more, or NCCL_SPLIT_NOCOLOR",
			    colour);
	struct start entered = {0};
	ncclResult_t r = enter_to_split(comm, &entered);
	if (!r)
		r = config_read(config, comm, "ncclCommSplit", &c);
	struct start *s = r ? NULL : start_new(START_SPLIT, comm->device, &c, newcomm);
	if (!s)
		return r ? r : ncclSystemError;
	s->parent = handle_ref(comm);
	s->anew = entered.anew;
	s->id = entered.id;
	s->nranks = entered.nranks;
	s->rank = entered.rank;
	s->colour = colour;
	s->key = key;
	if (colour == NCCL_SPLIT_NOCOLOR) { /* takes part, but gets no communicator */
		handle_unref(s->comm);
		handle_unref(s->comm);
		s->comm = NULL;
		s->out = NULL;
	}
	return group_begin_start(s);
}
NCCL_ALIAS(ncclCommSplit);

/* Fills in rank and number of ranks in s. */
static ncclResult_t shrink(ncclComm_t comm, const int *exclude, int n, struct start *s)
{
	bool *out = calloc((size_t)comm->nranks, sizeof(*out));
	if (!out)
		return fail(ncclSystemError, "out of memory");
	ncclResult_t r = ncclSuccess;
	s->nranks = comm->nranks;
	s->rank = comm->rank;
	for (int i = 0; !r && i < n; i++) {
		if (exclude[i] < 0 || exclude[i] >= comm->nranks || out[exclude[i]])
			r = fail(ncclInvalidArgument,
				 "ncclCommShrink: rank %d is excluded twice, or is not one of %d "
				 "ranks",
				 exclude[i], comm->nranks);
		else if (exclude[i] == comm->rank)
			r = fail(ncclInvalidArgument,
				 "ncclCommShrink: rank %d excludes itself: excluded ranks must not "
				 "call it",
				 comm->rank);
		else
			out[exclude[i]] = true;
		s->rank -= !r && exclude[i] < comm->rank;
		s->nranks -= !r;
	}
	if (!r)
		derived_id(&comm->id, comm->shrinks++, out, comm->nranks, &s->id);
	free(out);
	return r;
}

/* The parent may be broken or revoked: everything that a shrink needs from it is known in this
 * process. */
static ncclResult_t check_shrink(ncclComm_t comm, int flags)
{
	if (flags & ~NCCL_SHRINK_ABORT)
		return fail(ncclInvalidArgument, "ncclCommShrink: unknown flags %#x", flags);
	pthread_mutex_lock(&comm->lock);
	enum comm_state state = comm->state;
	bool aborted = comm->aborted, broken = comm->async && !comm->revoked;
	pthread_mutex_unlock(&comm->lock);
	if (aborted || (state != COMM_READY && state != COMM_LEFT))
		return fail(ncclInvalidUsage, "ncclCommShrink: the communicator was never ready, "
					      "or has been aborted");
	if (broken && !(flags & NCCL_SHRINK_ABORT))
		return fail(
			comm->async,
			"ncclCommShrink: the communicator has failed: use NCCL_SHRINK_ABORT (%s)",
			comm->text);
	return ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *exclude, int n, ncclComm_t *newcomm,
			    ncclConfig_t *config, int flags)
{
	struct config c;
	if (!newcomm || !exclude || n < 1)
		return fail(ncclInvalidArgument,
			    "ncclCommShrink: newcomm is %p, and the list of %d ranks is %p",
			    (void *)newcomm, n, (void *)exclude);
	*newcomm = NULL;
	ncclResult_t r = handle_check(comm, "ncclCommShrink");
	if (!r)
		r = check_shrink(comm, flags);
	if (!r)
		r = config_read(config, comm, "ncclCommShrink", &c);
	if (r)
		return r;
	struct start *s = start_new(START_JOIN, comm->device, &c, newcomm);
	if (!s)
		return ncclSystemError;
	r = shrink(comm, exclude, n, s);
	if (!r && flags & NCCL_SHRINK_ABORT)
		r = ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
	if (r) {
		start_free(s);
		return r;
	}
	s->parent = handle_ref(comm);
	return group_begin_start(s);
}
NCCL_ALIAS(ncclCommShrink);

/* The id with which the next grown communicator is joined. Locked. */
static void grown_id(const struct ncclComm *comm, ncclUniqueId *id)
{
	derived_id(&comm->id, GROWS + comm->grows, NULL, comm->nranks, id);
}

/* All ranks of the parent can compute it; the new ranks must be given it. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
	ncclResult_t r = handle_check(comm, "ncclCommGetUniqueId");
	if (!r)
		r = handle_usable(comm, "ncclCommGetUniqueId");
	if (!r && !id)
		r = fail(ncclInvalidArgument, "ncclCommGetUniqueId: the id is NULL");
	if (r)
		return r;
	pthread_mutex_lock(&comm->lock);
	grown_id(comm, id);
	pthread_mutex_unlock(&comm->lock);
	return ncclSuccess;
}
NCCL_ALIAS(ncclCommGetUniqueId);

/* A rank that is already in comm. id: NULL, or from ncclCommGetUniqueId. */
static ncclResult_t grow(ncclComm_t comm, int nranks, const ncclUniqueId *id, struct start *s)
{
	ncclResult_t r = ncclSuccess;
	pthread_mutex_lock(&comm->lock);
	grown_id(comm, &s->id);
	if (id && memcmp(id, &s->id, sizeof(*id)) != 0)
		r = fail(ncclInvalidArgument,
			 "ncclCommGrow: the id is outdated: call ncclCommGetUniqueId on this "
			 "communicator again for each growth");
	else
		comm->grows++;
	s->nranks = nranks;
	s->rank = comm->rank;
	pthread_mutex_unlock(&comm->lock);
	return r;
}

static ncclResult_t check_grow(ncclComm_t comm, int nranks, int rank)
{
	ncclResult_t r = handle_check(comm, "ncclCommGrow");
	if (!r)
		r = handle_usable(comm, "ncclCommGrow");
	if (!r && rank != -1)
		r = fail(ncclInvalidArgument,
			 "ncclCommGrow: the rank is %d, but a rank of the communicator keeps its "
			 "own: use -1",
			 rank);
	if (!r && nranks <= comm->nranks)
		r = fail(ncclInvalidArgument,
			 "ncclCommGrow: %d ranks: there must be more than the communicator's %d",
			 nranks, comm->nranks);
	return r;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank,
			  ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct config c;
	if (!newcomm)
		return fail(ncclInvalidArgument, "ncclCommGrow: newcomm is NULL");
	*newcomm = NULL;
	if (!comm && !id)
		return fail(ncclInvalidArgument,
			    "ncclCommGrow: a new rank needs the id from ncclCommGetUniqueId");
	if (!comm)
		return join_here("ncclCommGrow", newcomm, nranks, id, rank, config);
	ncclResult_t r = check_grow(comm, nranks, rank);
	if (!r)
		r = config_read(config, comm, "ncclCommGrow", &c);
	if (r)
		return r;
	struct start *s = start_new(START_JOIN, comm->device, &c, newcomm);
	if (!s)
		return ncclSystemError;
	r = grow(comm, nranks, id, s);
	if (r) {
		start_free(s);
		return r;
	}
	s->parent = handle_ref(comm);
	return group_begin_start(s);
}
NCCL_ALIAS(ncclCommGrow);
