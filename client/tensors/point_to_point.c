/* SPDX-License-Identifier: Apache-2.0
 * Send and Recv of lists. A static list is one message. With shapes ahead, the sender first sends
 * the shapes, on the host; if they match, the data follows. Both sides must use the same mode, so
 * their first messages have to match. What goes ahead uses the second communicator, so a static
 * list announces itself there with an empty message. A side that finds the peer in the other mode
 * also takes the data's turn, by refusing it. */
#include <stdlib.h>

#include "base/error.h"
#include "batch.h"
#include "core/comm_handle.h"
#include "list_request.h"
#include "profiler_ranges.h"
#include "proto/names.h"
#include "proto/task.h"

enum step { SHAPES_FIRST, SHAPES_REST, DATA };

static ncclsvc_result prepare_data(struct ncclsvc_request *r, char *src, char *dst, uint64_t word)
{
	r->step = DATA;
	return request_data(r, src, dst, r->list.total, NCCLSVC_UINT8, word);
}

/* Prepares all of a static list, including the message that announces it, unless a plan has agreed
 * on that. */
static ncclsvc_result prepare_static(struct ncclsvc_request *r, char *src, char *dst)
{
	uint64_t word = agreement(AGREED_STATIC, digest_tensors(r->list.tensors, r->list.n));
	ncclsvc_result result = NCCLSVC_OK;
	if (!r->planned)
		result = request_ahead(r, NULL, NULL, 0, word);
	return result ? result : prepare_data(r, src, dst, word);
}

static uint64_t announced(const struct ncclsvc_request *r)
{
	uint64_t digest = DIGEST_START;
	for (size_t i = 0; i < r->nwords; i++)
		digest = digest_add(digest, r->words[i]);
	return agreement(AGREED_AHEAD, digest);
}

/* The announcement that shapes follow, which the receiver does not know yet. */
static uint64_t shapes_follow(const struct ncclsvc_request *r)
{
	return r->planned ? agreement(AGREED_PLANNED, list_slot_number(&r->slot))
			  : agreement(AGREED_SHAPES, 0);
}

static ncclsvc_result prepare_words(struct ncclsvc_request *r, size_t from, size_t n, unsigned step)
{
	const bool send = r->op == NCCLSVC_SEND;
	uint64_t *words = r->words + from;
	r->step = step;
	return request_ahead(r, send ? words : NULL, send ? NULL : words, n, shapes_follow(r));
}

/* Both sides have the first words, so both know these turns. */
static bool announced_rest(struct ncclsvc_request *r, size_t nwords)
{
	r->owes_ahead = nwords > ANNOUNCE_FIRST;
	r->owes_data = true;
	return r->owes_ahead;
}

/* ---- Checks, in order ---- */

static ncclsvc_result check_call(ncclsvc_tensors *l, const ncclsvc_message *m, bool waits)
{
	if (!l || !m)
		return error_argument("lists or message is NULL");
	if (m->size < sizeof(*m))
		return error_argument("message.size is %zu: set it to sizeof(ncclsvc_message)",
				      m->size);
	const char *more = (const char *)m + sizeof(*m);
	for (size_t i = 0; i < m->size - sizeof(*m); i++)
		if (more[i])
			return error_set(
				NCCLSVC_UNSUPPORTED,
				"a field of the message is set that this library does not support");
	return lists_usable(l, waits);
}

ncclsvc_result peer_check(const ncclsvc_comm *comm, int64_t peer, bool send)
{
	if (peer != comm->rank)
		return NCCLSVC_OK;
	return error_argument(send ? "sending data to rank %d on the rank %d"
				   : "receiving data from rank %d on the rank %d",
			      comm->rank, comm->rank);
}

/* Without a valid peer, no refusal can be sent. */
static ncclsvc_result check_peer(const ncclsvc_tensors *l, const ncclsvc_message *m, bool send)
{
	const ncclsvc_comm *comm = l->comm;
	if (m->remote_rank >= 0 && m->remote_rank < comm->nranks)
		return peer_check(comm, m->remote_rank, send);
	return error_argument("remote_rank is %lld: the communicator's %d ranks are 0 to %d",
			      (long long)m->remote_rank, comm->nranks, comm->nranks - 1);
}

ncclsvc_result shapes_check(ncclsvc_shapes shapes)
{
	if (shapes == NCCLSVC_SHAPES_STATIC || shapes == NCCLSVC_SHAPES_AHEAD)
		return NCCLSVC_OK;
	return error_argument("shapes is %d: use NCCLSVC_SHAPES_STATIC or NCCLSVC_SHAPES_AHEAD",
			      (int)shapes);
}

ncclsvc_result message_check(const ncclsvc_message *m, bool send)
{
	if (!m->input_signal)
		return error_argument("input_signal is false: it must be true before data is %s",
				      send ? "sent" : "received");
	ncclsvc_result result = shapes_check(m->shapes);
	if (result)
		return result;
	if (m->flags & ~NCCLSVC_MESSAGE_ONE_BUFFER)
		return error_argument("flags are %#x, which this library does not support",
				      m->flags);
	if (!send && m->shapes == NCCLSVC_SHAPES_AHEAD && !m->allocate)
		return error_argument(
			"allocate is NULL: it is needed for outputs whose shapes are sent ahead");
	return NCCLSVC_OK;
}

static struct ncclsvc_request *make(ncclsvc_tensors *l, const ncclsvc_message *m, bool send,
				    int timeout_ms)
{
	struct ncclsvc_request *r =
		request_new(l, send ? NCCLSVC_SEND : NCCLSVC_RECV, (int)m->remote_rank, timeout_ms);
	if (!r)
		return NULL;
	r->tag = m->tag;
	r->shapes = m->shapes;
	r->flags = m->flags;
	r->refusal = m->input_signal ? NCCLSVC_REFUSAL_NONE : NCCLSVC_REFUSAL_SIGNAL;
	r->allocate = m->allocate;
	r->arg = m->arg;
	r->owes_ahead = r->owes_data = true;
	return r;
}

static ncclsvc_result make_pieces(struct ncclsvc_request *r)
{
	r->pieces = calloc(r->list.n + 1, sizeof(*r->pieces));
	if (!r->pieces)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	for (size_t i = 0; i < r->list.n; i++)
		if (r->list.bytes[i])
			r->pieces[r->npieces++] = (struct piece){
				r->list.tensors[i].data, r->list.offsets[i], r->list.bytes[i]};
	return NCCLSVC_OK;
}

/* ---- Send ---- */

/* Finds or packs the data in one piece. */
static ncclsvc_result pack(struct ncclsvc_request *r)
{
	uint64_t range = 0;
	r->at = list_in_place(r->lists, &r->list, true);
	if (r->at || !r->list.total)
		return NCCLSVC_OK;
	ncclsvc_result result = make_pieces(r);
	if (!result)
		result = buffer_get(r->lists, r->list.total, &r->buffer);
	if (result)
		return result;
	range = nvtx_start("SendMemcpy", r->tag, r->peer);
	r->at = r->buffer->at;
	result = copy_in(r->lists, r->buffer, r->pieces, r->npieces, 0, r->list.total,
			 digest_tensors(r->list.tensors, r->list.n));
	nvtx_stop(range);
	return result;
}

static ncclsvc_result proceed_send(struct ncclsvc_request *r)
{
	if (r->step == DATA)
		request_end(r, NCCLSVC_OK);
	else if (r->step == SHAPES_FIRST && announced_rest(r, r->nwords))
		return prepare_words(r, ANNOUNCE_FIRST, r->nwords - ANNOUNCE_FIRST, SHAPES_REST);
	else
		return prepare_data(r, r->at, NULL, announced(r));
	return NCCLSVC_OK;
}

static ncclsvc_result prepare_send(struct ncclsvc_request *r, const ncclsvc_message *m)
{
	ncclsvc_result result = message_check(m, true);
	if (!result)
		result = list_take(&r->list, m->tensors, m->n, false);
	if (!result)
		result = list_placed(r->lists, &r->list);
	if (!result && r->shapes == NCCLSVC_SHAPES_AHEAD &&
	    !(r->words = announce_write(&r->list, &r->nwords)))
		result = NCCLSVC_NO_MEMORY;
	if (!result)
		result = pack(r);
	if (result)
		return result;
	return r->shapes == NCCLSVC_SHAPES_AHEAD ? prepare_words(r, 0, ANNOUNCE_FIRST, SHAPES_FIRST)
						 : prepare_static(r, r->at, NULL);
}

/* ---- Recv ---- */

/* All members get this result; the sentence is the one that the callback has left. */
static ncclsvc_result allocate_failed(struct ncclsvc_request *r, ncclsvc_result result)
{
	const int reported = svc_refusal_result(svc_refusal(result, NCCLSVC_REFUSAL_ALLOCATE));
	const char *why = ncclsvc_last_error();
	r->refusal = NCCLSVC_REFUSAL_ALLOCATE;
	return error_set((ncclsvc_result)reported, "the receiver's allocate callback failed: %s",
			 *why ? why : svc_result_meaning(reported));
}

/* Lets the receiver allocate memory for the shapes, which are now known. */
static ncclsvc_result allocate(struct ncclsvc_request *r)
{
	if (r->allocate) {
		error_clear();
		r->lists->allocating = true;
		ncclsvc_result result = r->allocate(r->list.tensors, r->list.n, r->arg);
		r->lists->allocating = false;
		if (result)
			return allocate_failed(r, result);
		/* The callback may only set data, but could have changed anything. */
		uint64_t total = r->list.total;
		result = list_measure(&r->list);
		if (!result && r->list.total != total)
			result = error_argument(
				"the receiver's allocate callback changed types or shapes");
		if (result)
			return result;
	}
	return list_placed(r->lists, &r->list);
}

/* Where the data is received, in one piece. */
static ncclsvc_result place(struct ncclsvc_request *r)
{
	ncclsvc_result result = allocate(r);
	if (result || !r->list.total)
		return result;
	r->at = list_in_place(r->lists, &r->list, r->flags & NCCLSVC_MESSAGE_ONE_BUFFER);
	if (r->at)
		return NCCLSVC_OK;
	result = make_pieces(r);
	if (!result)
		result = buffer_get(r->lists, r->list.total, &r->buffer);
	if (result)
		return result;
	r->at = r->buffer->at;
	r->buffer->clean = 0;
	r->copies_out = true;
	return NCCLSVC_OK;
}

static ncclsvc_result receive_announced(struct ncclsvc_request *r)
{
	ncclsvc_result result = announce_read(r->words, r->nwords, &r->list);
	if (!result && (result = announce_allowed(&r->list, &r->allowed)))
		r->refusal = NCCLSVC_REFUSAL_SHAPES;
	if (!result)
		result = place(r);
	return result ? result : prepare_data(r, NULL, r->at, announced(r));
}

static ncclsvc_result receive_first(struct ncclsvc_request *r)
{
	size_t nwords = 0;
	ncclsvc_result result = announce_length(r->words, r->allowed.n, &nwords);
	const bool rest = announced_rest(r, nwords);
	if (result == NCCLSVC_MISMATCH)
		r->refusal = NCCLSVC_REFUSAL_SHAPES;
	if (result)
		return result;
	r->nwords = nwords;
	if (!rest)
		return receive_announced(r);
	uint64_t *words = realloc(r->words, nwords * sizeof(*words));
	if (!words)
		return error_set(NCCLSVC_NO_MEMORY, "out of memory");
	r->words = words;
	return prepare_words(r, ANNOUNCE_FIRST, nwords - ANNOUNCE_FIRST, SHAPES_REST);
}

static ncclsvc_result proceed_recv(struct ncclsvc_request *r)
{
	ncclsvc_result result = NCCLSVC_OK;
	if (r->step == SHAPES_FIRST)
		return receive_first(r);
	if (r->step == SHAPES_REST)
		return receive_announced(r);
	if (r->copies_out)
		result = request_copy_out(r, 0);
	if (!result && !r->event)
		request_end(r, NCCLSVC_OK);
	return result;
}

static ncclsvc_result prepare_recv(struct ncclsvc_request *r, const ncclsvc_message *m)
{
	bool ahead = m->shapes == NCCLSVC_SHAPES_AHEAD;
	ncclsvc_result result = message_check(m, false);
	if (!result)
		result = list_take(ahead ? &r->allowed : &r->list, m->tensors, m->n, ahead);
	if (!result && !ahead)
		result = place(r);
	if (!result && ahead && !(r->words = calloc(ANNOUNCE_FIRST, sizeof(*r->words))))
		result = error_set(NCCLSVC_NO_MEMORY, "out of memory");
	if (result)
		return result;
	return ahead ? prepare_words(r, 0, ANNOUNCE_FIRST, SHAPES_FIRST)
		     : prepare_static(r, NULL, r->at);
}

/* ---- The calls ---- */

ncclsvc_result message_prepare(struct ncclsvc_request *r, const ncclsvc_message *m)
{
	const bool send = r->op == NCCLSVC_SEND;
	uint64_t range = nvtx_start(send ? "PreSend" : "PreRecv", m->tag, m->remote_rank);
	r->proceed = send ? proceed_send : proceed_recv;
	ncclsvc_result result = send ? prepare_send(r, m) : prepare_recv(r, m);
	nvtx_stop(range);
	if (!result)
		r->range = nvtx_start(send ? "Send" : "Recv", m->tag, m->remote_rank);
	return result;
}

ncclsvc_result message_request(ncclsvc_tensors *l, const ncclsvc_message *m, bool send,
			       int timeout_ms, bool waited, struct ncclsvc_request **r)
{
	ncclsvc_result result = check_call(l, m, waited);
	if (result)
		return result;
	/* The signal is checked before the rank. A rank that is not a valid peer gets no refusal.
	 */
	result = check_peer(l, m, send);
	if (result && !m->input_signal)
		return message_check(m, send);
	if (result)
		return result;
	*r = make(l, m, send, timeout_ms);
	if (!*r)
		return NCCLSVC_NO_MEMORY;
	(*r)->waited = waited;
	return NCCLSVC_OK;
}

static ncclsvc_result begin(ncclsvc_tensors *l, const ncclsvc_message *m, bool send, int timeout_ms,
			    bool waited, ncclsvc_request **out)
{
	struct ncclsvc_request *r = NULL;
	ncclsvc_result result = message_request(l, m, send, timeout_ms, waited, &r);
	if (!result)
		result = request_begin(r, message_prepare(r, m));
	if (!result)
		*out = r;
	return result;
}

static ncclsvc_result transfer(ncclsvc_tensors *l, const ncclsvc_message *m, bool send,
			       int timeout_ms, bool *output_signal)
{
	struct ncclsvc_request *r = NULL;
	if (output_signal)
		*output_signal = false;
	ncclsvc_result result = begin(l, m, send, timeout_ms, true, &r);
	if (!result)
		result = request_finish(r);
	if (result)
		return result;
	uint64_t range = nvtx_start(send ? "PostSend" : "PostRecv", m->tag, (int)m->remote_rank);
	if (output_signal)
		*output_signal = true;
	nvtx_stop(range);
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_tensors_send(ncclsvc_tensors *l, const ncclsvc_message *m, int timeout_ms,
				    bool *output_signal)
{
	return transfer(l, m, true, timeout_ms, output_signal);
}

ncclsvc_result ncclsvc_tensors_recv(ncclsvc_tensors *l, const ncclsvc_message *m, int timeout_ms,
				    bool *output_signal)
{
	return transfer(l, m, false, timeout_ms, output_signal);
}

static ncclsvc_result transfer_one(ncclsvc_tensors *l, const ncclsvc_tensor *tensor, int64_t peer,
				   int64_t tag, bool send, int timeout_ms)
{
	const ncclsvc_message m = {.size = sizeof(m),
				   .input_signal = true,
				   .remote_rank = peer,
				   .tag = tag,
				   .shapes = NCCLSVC_SHAPES_STATIC,
				   .n = 1,
				   .tensors = tensor};
	return transfer(l, &m, send, timeout_ms, NULL);
}

ncclsvc_result ncclsvc_tensor_send(ncclsvc_tensors *l, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms)
{
	return transfer_one(l, &tensor, peer, tag, true, timeout_ms);
}

ncclsvc_result ncclsvc_tensor_recv(ncclsvc_tensors *l, ncclsvc_tensor tensor, int64_t peer,
				   int64_t tag, int timeout_ms)
{
	return transfer_one(l, &tensor, peer, tag, false, timeout_ms);
}

ncclsvc_result ncclsvc_tensors_isend(ncclsvc_tensors *l, const ncclsvc_message *m,
				     ncclsvc_request **request)
{
	if (!request)
		return error_argument("ncclsvc_tensors_isend: the request is NULL");
	return begin(l, m, true, NCCLSVC_NO_TIMEOUT, false, request);
}

ncclsvc_result ncclsvc_tensors_irecv(ncclsvc_tensors *l, const ncclsvc_message *m,
				     ncclsvc_request **request)
{
	if (!request)
		return error_argument("ncclsvc_tensors_irecv: the request is NULL");
	return begin(l, m, false, NCCLSVC_NO_TIMEOUT, false, request);
}
