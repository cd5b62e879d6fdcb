/* SPDX-License-Identifier: Apache-2.0
 * The daemon's own deadlock detection, with planted mistakes: its messages, in both directions, and
 * its questions about pairs pass through here. */
#include "base/timings.h"
#include "deadlocks.h"
#include "sched/internode/deadlock.h"
#include "sched/internode/node_match.h"

static bool plant_now(enum plant p)
{
	return planted == p && chance(30);
}

static void say(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		enum internode_kind kind, const struct operation_key *key, const void *body,
		size_t bytes, const void *more, size_t more_bytes);

static bool pair_past(struct internode_comm *s, const struct operation_key *key)
{
	return planted != PLANT_NO_NUMBER && node_match_pair_past(s, key);
}

#define internode_comm_send   say
#define node_match_pair_past  pair_past
#define deadlock_take_message take_message
void take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		  const void *body, size_t bytes);
#include "sched/internode/deadlock.c"
#undef internode_comm_send
#undef node_match_pair_past
#undef deadlock_take_message

static void say(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
		enum internode_kind kind, const struct operation_key *key, const void *body,
		size_t bytes, const void *more, size_t more_bytes)
{
	const bool verdict = kind == INTERNODE_ASK;
	ncclsvc_status st;
	if (verdict)
		comms[s->comm->slot].broken = true;
	if (verdict && plant_now(PLANT_ONE_NODE_LESS))
		return;
	if (verdict && plant_now(PLANT_STATUS)) {
		memcpy(&st, body, sizeof(st));
		st.rank_b = st.rank_a;
		body = &st;
	}
	internode_comm_send(sched, s, node_index, kind, key, body, bytes, more, more_bytes);
}

void deadlock_take_message(struct scheduler *sched, struct internode_comm *s, uint32_t node_index,
			   const void *body, size_t bytes)
{
	struct deadlock_note note = {0};
	memcpy(&note, body, bytes < sizeof(note) ? bytes : sizeof(note));
	const bool answers = !s->me && note.query_seq, asks = s->me,
		   reports = !s->me && !note.query_seq;
	trace(s->nodes[s->me], "hears from node %u: %s %u, %u operations", s->nodes[node_index],
	      reports ? "report"
	      : asks  ? "question"
		      : "answer",
	      note.query_seq, note.nkeys);
	if ((reports && plant_now(PLANT_LOSE_REPORT)) || (answers && plant_now(PLANT_LOSE_ANSWER)))
		return;
	if (answers && s->deadlock && planted == PLANT_OLD_ANSWER)
		note.query_seq = s->deadlock->query_seq;
	if (asks && plant_now(PLANT_NO_QUESTION)) {
		note.nkeys = 0;
		bytes = note_bytes(&note);
	}
	take_message(sched, s, node_index, &note, bytes);
	if (answers && plant_now(PLANT_ANSWER_TWICE))
		take_message(sched, s, node_index, &note, bytes);
}

void program_round(struct scheduler *sched)
{
	struct internode_comm *s, *next;
	if (planted != PLANT_NOT_WITHDRAWN)
		return;
	HASH_ITER (hh, sched->internode->comms, s, next) {
		const uint64_t state = waits(s);
		if (s->deadlock && s->deadlock->reported && state)
			s->deadlock->reported = state;
	}
}

static const char *plant_name(unsigned p)
{
	static const char *const names[PLANTS] = {
		[PLANT_NONE] = "none",
		[PLANT_OLD_ANSWER] = "an answer to an older question counts",
		[PLANT_NO_NUMBER] = "pairs are compared without their numbers",
		[PLANT_NO_QUESTION] = "a node answers whatever others have posted",
		[PLANT_ONE_NODE_LESS] = "a node is not told of the deadlock",
		[PLANT_NOT_WITHDRAWN] = "a report is not withdrawn when something progresses",
		[PLANT_ANSWER_TWICE] = "an answer counts twice",
		[PLANT_STATUS] = "a node is told another status",
		[PLANT_LOSE_REPORT] = "a report is lost",
		[PLANT_LOSE_ANSWER] = "an answer is lost",
	};
	return names[p];
}

const struct simulated simulated = {
	.about = "Runs schedules of operations on several nodes, with deadlocks or without,",
	.plants = PLANTS,
	.plant_name = plant_name,
	.scenarios_run = scenarios_run,
};
