/* SPDX-License-Identifier: Apache-2.0
 * What junction.c, junction_hear.c and junction_pair.c share. */
#ifndef ENGINE_JUNCTION_H
#define ENGINE_JUNCTION_H

#include "span.h"

/* ---- junction.c ---- */

/* NULL: none. */
struct junction *junction_find(struct span *s, const struct operation_key *key);
/* Made if need be; NULL: out of memory, or the others are too far ahead. */
struct junction *junction_get(struct span *s, const struct operation_key *key);
/* t waits for other nodes: from now on nothing takes it back. */
void junction_commit(struct engine *e, struct junction *j, struct task *t);
/* To all others that take part. */
void junction_tell_failed(struct engine *e, const struct junction *j,
			  const struct failed_note *failed);
/* That part is ready, for this. */
void junction_ready(struct junction *j, uint32_t part, const struct svc_record *record);
/* This node's word, which may conclude it. */
void junction_say_ready(struct engine *e, struct junction *j, const struct svc_record *record);
void junction_say_failed(struct engine *e, struct junction *j, const ncclsvc_status *st);
/* The place among the span's nodes of one that takes part; and the reverse. */
uint32_t junction_place_of(const struct junction *j, uint32_t part);
uint32_t junction_part_of(const struct junction *j, uint32_t place);
/* What that part has failed with. False: no memory. */
bool junction_keep_failed(struct junction *j, uint32_t part, const struct failed_note *failed);
/* It has failed, and this node had said so before, or has not got to it. */
void junction_conclude_failed(struct engine *e, struct junction *j);
/* Of a TIMEOUT: the local ranks that have not posted it. */
void junction_name_missing(const struct comm *c, const struct junction *j, ncclsvc_status *st);
/* All have spoken: it runs, or has failed. */
void junction_conclude(struct engine *e, struct junction *j);
void junction_end_tasks(struct engine *e, struct junction *j, const ncclsvc_status *st);

/* Of one that the sequencer decides: the request that it is in; NULL: none yet. */
struct launch_request *junction_request(const struct junction *j);
/* Its tasks are not to be launched, nor is what was requested together with them, by that. */
void junction_call_off(struct engine *e, struct junction *j);

/* ---- junction_pair.c ---- */

/* Has the member here posted its side of the pair, or will it never, as it has left? */
bool junction_pair_past(struct span *s, const struct operation_key *key);
/* The other side of a pair is ready, and nobody here has posted it: is another pair posted here
 * that was to meet it, if only both were of the plan, or neither? Then both fail. */
void junction_check_kind(struct engine *e, struct junction *j);
/* Its plan was left by the member here, which has not posted it and never will: it is freed. */
void junction_forget_left(struct engine *e, struct junction *j);

#endif
