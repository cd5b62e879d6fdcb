/* SPDX-License-Identifier: Apache-2.0
 *
 * What members tell each other after a failure: the sentence of one that refuses, and where two
 * lists differ.
 *
 * Members have compared one word for each list. To find the first tensor that differs, they compare
 * digests of slices of their lists: of up to SLICES slices each time, then of those of the first
 * slice that differs, and in the end one tensor. All that they say is an answer to the same
 * question, since all know the same digests: nobody leads. It takes as many messages as the list's
 * length has digits, and DESCRIBE_MS at most. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/deadline_clock.h"
#include "base/error.h"
#include "core/call.h"
#include "core/comm_handle.h"
#include "core/session_handle.h"
#include "proto/names.h"
#include "proto/printable.h"
#include "tensors.h"

#define DESCRIBE_MS    1000 /* a rank that is told of the failure answers at once */
#define ASK_AGAIN_NS   1000000
#define SENTENCE_BYTES 200
#define WORDS	       (SVC_DESCRIPTION_BYTES / sizeof(uint64_t))
#define SLICES	       (WORDS - 1)

_Static_assert(SENTENCE_BYTES < SVC_DESCRIPTION_BYTES, "a sentence and its NUL");

/* ---- By way of the daemon ---- */

struct exchange {
	ncclsvc_tensors *lists;
	unsigned depth;
	ncclsvc_comm *comm;
	uint32_t epoch;
	uint64_t deadline;
};

static struct exchange exchange_of(ncclsvc_tensors *lists)
{
	struct exchange x = {
		.lists = lists, .comm = lists->comm, .deadline = deadline_in(DESCRIBE_MS)};
	session_lock(lists->session);
	x.epoch = lists->comm->epoch;
	session_unlock(lists->session);
	return x;
}

/* False: it cannot be said or asked. *known: it was answered. */
static bool call(const struct exchange *x, struct svc_describe *request, bool *known, void *text)
{
	ncclsvc_session *s = x->comm->session;
	struct call call = {.fd = -1};
	struct error before;
	error_keep(&before);
	session_lock(s);
	request->comm = x->comm->handle;
	request->epoch = x->epoch;
	const ncclsvc_result result =
		x->comm->epoch == x->epoch && x->comm->handle
			? call_run(s, &call, SVC_DESCRIBE, request, -1, x->deadline)
			: NCCLSVC_STALE_EPOCH;
	session_unlock(s);
	error_again(&before);
	const struct svc_describe_reply *reply = (const void *)call.body;
	*known = !result && reply->known;
	if (*known)
		memcpy(text, reply->text, sizeof(reply->text));
	return !result;
}

/* Receives the peer's description of its word into `text`. False if none arrives. */
static bool hear(const struct exchange *x, int peer, uint64_t about, void *text)
{
	struct svc_describe request = {.peer = peer, .peer_about = about};
	bool known = false;
	if (x->lists->silent_epoch == x->epoch) /* nor will it say anything about the next one */
		return false;
	while (call(x, &request, &known, text) && !known && now_ns() < x->deadline)
		nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
	if (!known)
		x->lists->silent_epoch = x->epoch;
	return known;
}

static bool say(const struct exchange *x, uint64_t about, const void *text)
{
	struct svc_describe request = {.about = about, .peer = -1};
	uint8_t nothing[SVC_DESCRIPTION_BYTES];
	bool known;
	memcpy(request.text, text, sizeof(request.text));
	return call(x, &request, &known, nothing);
}

/* ---- Refusals ---- */

uint64_t refusal_describe(ncclsvc_tensors *lists, uint64_t word, const char *sentence)
{
	char text[SVC_DESCRIPTION_BYTES] = {0};
	uint64_t digest = DIGEST_START;
	snprintf(text, SENTENCE_BYTES + 1, "%s", sentence);
	for (size_t i = 0; i < sizeof(text); i++)
		digest = digest_add(digest, (uint8_t)text[i]);
	const uint64_t says = digest & SVC_AGREEMENT_SAYS;
	const struct exchange x = exchange_of(lists);
	return text[0] && says && say(&x, word | says, text) ? word | says : word;
}

void refusal_read(ncclsvc_tensors *lists, const ncclsvc_status *st,
		  char text[SVC_DESCRIPTION_BYTES])
{
	const struct exchange x = exchange_of(lists);
	text[0] = '\0';
	if (st->rank_a < 0 || st->rank_a == lists->comm->rank ||
	    st->value_b == SVC_AGREEMENT_REFUSED || !(st->value_b & SVC_AGREEMENT_SAYS))
		return;
	if (!hear(&x, st->rank_a, st->value_b, text))
		text[0] = '\0';
	text[SVC_DESCRIPTION_BYTES - 1] = '\0';
	svc_make_printable(text, SVC_DESCRIPTION_BYTES);
}

/* ---- Where lists differ ---- */

/* Tensors of a list: from the first to the one behind the last. */
struct range {
	size_t from, to;
};

static struct range slice_of(struct range r, size_t i)
{
	const size_t n = r.to - r.from, slices = n < SLICES ? n : SLICES;
	if (i >= slices)
		return (struct range){r.to, r.to};
	return (struct range){r.from + n * i / slices, r.from + n * (i + 1) / slices};
}

/* How many they are, and of one: type and dimensions; of more: a digest of each slice. */
static void describe(const struct list *l, struct range r, uint64_t words[WORDS])
{
	memset(words, 0, WORDS * sizeof(words[0]));
	words[0] = r.to - r.from;
	if (words[0] == 1) {
		const ncclsvc_tensor *t = &l->tensors[r.from];
		words[1] = t->type;
		words[2] = (uint64_t)t->ndims;
		for (int k = 0; k < t->ndims && k + 3 < (int)WORDS; k++)
			words[k + 3] = (uint64_t)t->dims[k];
		return;
	}
	for (size_t i = 0; i < SLICES; i++) {
		const struct range slice = slice_of(r, i);
		words[1 + i] = digest_tensors(l->tensors + slice.from, slice.to - slice.from);
	}
}

/* The question: how often the list was divided, and where the slice begins. (Where it ends may
 * differ.) */
static uint64_t about(uint64_t word, unsigned depth, struct range r)
{
	return digest_add(digest_add(word, depth), r.from);
}

struct both {
	const ncclsvc_status *st;
	const uint64_t *a, *b; /* what its ranks say */
	char *text;
	size_t size;
};

static void tell(const struct both *x, const char *what, const char *a, const char *b)
{
	const ncclsvc_status *st = x->st;
	const bool odd = st->missing_count == 1 && st->missing[0] == st->rank_b;
	if (odd)
		snprintf(x->text, x->size,
			 "%s differs: rank %d (pid %d) has %s, all others have %s", what,
			 st->rank_b, st->pid_b, b, a);
	else
		snprintf(x->text, x->size,
			 "%s differs: rank %d (pid %d) has %s, rank %d (pid %d) has %s", what,
			 st->rank_a, st->pid_a, a, st->rank_b, st->pid_b, b);
}

static void tell_numbers(const struct both *x, const char *what, uint64_t a, uint64_t b)
{
	char texts[2][24];
	snprintf(texts[0], sizeof(texts[0]), "%lld", (long long)a);
	snprintf(texts[1], sizeof(texts[1]), "%lld", (long long)b);
	tell(x, what, texts[0], texts[1]);
}

/* True: this tensor differs, and the text says in what. */
static bool tell_tensor(const struct both *x, size_t i)
{
	char what[64];
	size_t k = 1;
	while (k < WORDS && x->a[k] == x->b[k])
		k++;
	if (k == WORDS)
		return false;
	if (k == 1) {
		snprintf(what, sizeof(what), "type of tensor %zu", i);
		tell(x, what, svc_type_name((unsigned)x->a[1]), svc_type_name((unsigned)x->b[1]));
		return true;
	}
	if (k == 2)
		snprintf(what, sizeof(what), "number of dimensions of tensor %zu", i);
	else
		snprintf(what, sizeof(what), "dimension %zu of tensor %zu", k - 3, i);
	tell_numbers(x, what, x->a[k], x->b[k]);
	return true;
}

/* Fills in what ranks a and b say about the tensors. False: one of them says nothing. */
static bool ask(const struct exchange *e, const struct list *l, uint64_t word,
		const ncclsvc_status *st, struct range r, uint64_t a[WORDS], uint64_t b[WORDS])
{
	const bool like_a = word == st->value_a;
	const int rank = e->comm->rank;
	uint64_t *own = like_a ? a : b, *other = like_a ? b : a;
	describe(l, r, own);
	if ((rank == st->rank_a || rank == st->rank_b) && !say(e, about(word, e->depth, r), own))
		return false;
	return hear(e, like_a ? st->rank_b : st->rank_a,
		    about(like_a ? st->value_b : st->value_a, e->depth, r), other);
}

/* The first of the slices whose digests differ; SLICES: none. */
static size_t first_difference(const uint64_t a[WORDS], const uint64_t b[WORDS])
{
	size_t i = 0;
	while (i < SLICES && a[1 + i] == b[1 + i])
		i++;
	return i;
}

bool lists_compare(ncclsvc_tensors *lists, const struct list *list, uint64_t word,
		   const ncclsvc_status *st, char *text, size_t size)
{
	struct exchange e = exchange_of(lists);
	struct range r = {0, list->n};
	uint64_t a[WORDS], b[WORDS];
	const struct both both = {st, a, b, text, size};
	if (word != st->value_a && word != st->value_b)
		return false;
	while (ask(&e, list, word, st, r, a, b)) {
		if (a[0] != b[0]) {
			tell_numbers(&both, "number of tensors", a[0], b[0]);
			return true;
		}
		if (a[0] == 1)
			return tell_tensor(&both, r.from);
		r = slice_of(r, first_difference(a, b));
		e.depth++;
		if (r.from == r.to)
			return false;
	}
	return false;
}
