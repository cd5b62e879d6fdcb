/* SPDX-License-Identifier: Apache-2.0 */
#include "epoch.h"

#define BIT(cause) EPOCH_CAUSE(cause)
#define GIVEN_UP   EPOCH_GIVEN_UP
#define LOSS	   EPOCH_LOSS

#define ANY                                                                                        \
	(MEMBERS_NONE | MEMBERS_REMOTE | MEMBERS_HELD | MEMBERS_WAITING | MEMBERS_ALL |            \
	 MEMBERS_CLOSED)
#define JOINING (MEMBERS_WAITING | MEMBERS_ALL)

#define ROW(from, causes, members, to, meaning)                                                    \
	{                                                                                          \
		NCCLSVC_EPOCH_##from, causes, members, NCCLSVC_EPOCH_##to, meaning                 \
	}

const struct epoch_transition epoch_table[] = {
	ROW(IDLE, BIT(JOINED), JOINING, FORMING, "the first member here waits for the others"),
	ROW(IDLE, BIT(GATHERED), MEMBERS_ALL, FORMING,
	    "all ranks had joined, and this node's members are gone"),
	ROW(IDLE, BIT(START_FAILED), MEMBERS_NONE, IDLE, "a split found no room for its member"),
	ROW(IDLE, BIT(DEADLINE) | BIT(FORGOTTEN), MEMBERS_NONE, GONE,
	    "idle for comm_idle_seconds, or its place is needed"),
	ROW(IDLE, BIT(DAEMON_ENDS) | BIT(FORGOTTEN), MEMBERS_CLOSED, GONE,
	    "there was nothing to end"),

	ROW(FORMING, BIT(JOINED) | BIT(GATHERED), JOINING, FORMING, "one more has joined"),
	ROW(FORMING, BIT(GPUS_AWAITED), MEMBERS_ALL, ACQUIRING,
	    "all have joined: workers learn of the members, NCCL connects their GPUs"),
	ROW(FORMING, BIT(STARTED), MEMBERS_ALL, RUNNING, "all have joined, with host memory"),
	ROW(FORMING, GIVEN_UP, MEMBERS_NONE, IDLE, "the last member here has given up"),
	ROW(FORMING, GIVEN_UP, MEMBERS_HELD, BROKEN,
	    "a member keeps its rank, its JOIN has failed"),
	ROW(FORMING, GIVEN_UP, JOINING, FORMING, "one has given up, others keep waiting"),
	ROW(FORMING, BIT(FORGOTTEN), MEMBERS_NONE, GONE, "a split that failed for lack of room"),
	ROW(FORMING, BIT(DAEMON_ENDS), MEMBERS_CLOSED, GONE, "its sessions are closed"),

	ROW(BROKEN, BIT(JOINED), MEMBERS_HELD, BROKEN, "one has rejoined, others must follow"),
	ROW(BROKEN, BIT(JOINED) | BIT(GATHERED), JOINING, FORMING, "all members here are back"),
	ROW(BROKEN, GIVEN_UP, MEMBERS_NONE, IDLE, "the last member here is gone"),
	ROW(BROKEN, GIVEN_UP, MEMBERS_HELD, BROKEN, "one has given up, others must still JOIN"),
	ROW(BROKEN, GIVEN_UP, JOINING, FORMING, "those that had not joined are gone"),
	ROW(BROKEN, BIT(DAEMON_ENDS), MEMBERS_CLOSED, GONE, "its sessions are closed"),

	ROW(ACQUIRING, BIT(STARTED), MEMBERS_ALL, RUNNING, "the GPUs are ready"),
	ROW(ACQUIRING, BIT(GATHERED), MEMBERS_ALL, FORMING, "the nodes start over"),
	ROW(ACQUIRING, BIT(JOINED), MEMBERS_ALL, ACQUIRING,
	    "a JOIN for a rank of another node, which will be refused"),
	ROW(ACQUIRING, GIVEN_UP, MEMBERS_NONE, IDLE, "the last member here has given up"),
	ROW(ACQUIRING, GIVEN_UP, MEMBERS_HELD, BROKEN,
	    "a member keeps its rank, its JOIN has failed"),
	ROW(ACQUIRING, GIVEN_UP, MEMBERS_WAITING, FORMING, "one has given up, others keep waiting"),
	ROW(ACQUIRING, GIVEN_UP, MEMBERS_ALL, ACQUIRING,
	    "one has given up after all nodes were told to begin: START_FAILED follows"),
	ROW(ACQUIRING, BIT(DAEMON_ENDS), MEMBERS_CLOSED, GONE, "its sessions are closed"),

	ROW(RUNNING, BIT(JOINED) | BIT(GATHERED), MEMBERS_HELD | MEMBERS_REMOTE | MEMBERS_NONE,
	    RUNNING, "other nodes: the next epoch forms, and the end of this one follows"),
	ROW(RUNNING, GIVEN_UP & ~LOSS, MEMBERS_HELD, RUNNING, "one has left, the others continue"),
	ROW(RUNNING, GIVEN_UP & ~LOSS, MEMBERS_REMOTE, LEFT,
	    "the last member here has left; launched tasks end on the other nodes"),
	ROW(RUNNING, GIVEN_UP & ~LOSS, MEMBERS_NONE, DRAINING, "the last member has left"),
	ROW(RUNNING, LOSS | BIT(FAULT), ANY, DRAINING, "it ends for all members"),
	ROW(RUNNING, BIT(RENEWED), ANY, DRAINING, "a newcomer needs an epoch with all ranks"),
	ROW(RUNNING, BIT(DAEMON_ENDS), MEMBERS_CLOSED, DRAINING, "pending tasks fail"),

	ROW(LEFT, GIVEN_UP & ~LOSS, MEMBERS_REMOTE, LEFT, "a member on another node has left, too"),
	ROW(LEFT, GIVEN_UP & ~LOSS, MEMBERS_NONE, DRAINING, "the last member has left"),
	ROW(LEFT, BIT(GATHERED), MEMBERS_REMOTE | MEMBERS_NONE, LEFT, "the next epoch forms"),
	ROW(LEFT, LOSS | BIT(FAULT), ANY, DRAINING, "it ends for all members"),
	ROW(LEFT, BIT(RENEWED), ANY, DRAINING, "a newcomer joins: the old epoch ends here"),
	ROW(LEFT, BIT(DAEMON_ENDS), MEMBERS_CLOSED, DRAINING, "pending tasks fail"),

	ROW(DRAINING, BIT(JOINED) | BIT(GATHERED) | GIVEN_UP | LOSS | BIT(FAULT) | BIT(DAEMON_ENDS),
	    ANY, DRAINING,
	    "members come and go for the next epoch; at the deadline NCCL is aborted"),
	ROW(DRAINING, BIT(RELEASED), MEMBERS_NONE, IDLE, "no member is here"),
	ROW(DRAINING, BIT(RELEASED), MEMBERS_HELD, BROKEN, "members must JOIN again"),
	ROW(DRAINING, BIT(RELEASED), JOINING, FORMING, "all members here wait in JOIN already"),
	ROW(DRAINING, BIT(RELEASED) | BIT(FORGOTTEN), MEMBERS_CLOSED, GONE, "the daemon exits"),
};
const size_t epoch_table_rows = sizeof(epoch_table) / sizeof(epoch_table[0]);

const struct epoch_transition *epoch_find(ncclsvc_epoch_state from, ncclsvc_epoch_cause cause,
					  enum members_here members)
{
	for (size_t i = 0; i < epoch_table_rows; i++) {
		const struct epoch_transition *row = &epoch_table[i];
		if (row->from == from && row->causes >> cause & 1 &&
		    row->members & (uint32_t)members)
			return row;
	}
	return NULL;
}

static void enter(struct epoch_life *e, ncclsvc_epoch_state to, ncclsvc_epoch_cause cause,
		  uint64_t now_ns)
{
	e->state = to;
	e->since_ns = now_ns;
	e->steps[e->nsteps++ % NCCLSVC_EPOCH_STEPS] = (struct epoch_step){to, cause, now_ns};
}

void epoch_begin(struct epoch_life *e, uint64_t now_ns)
{
	*e = (struct epoch_life){.state = NCCLSVC_EPOCH_IDLE, .since_ns = now_ns};
}

bool epoch_step(struct epoch_life *e, ncclsvc_epoch_cause cause, enum members_here members,
		uint64_t now_ns)
{
	if (e->state == NCCLSVC_EPOCH_GONE)
		return true;
	const struct epoch_transition *row = epoch_find(e->state, cause, members);
	if (!row)
		e->faults++;
	else if (row->to != e->state)
		enter(e, row->to, cause, now_ns);
	return row;
}

uint32_t epoch_last_steps(const struct epoch_life *e, struct epoch_step steps[NCCLSVC_EPOCH_STEPS])
{
	const uint32_t n = e->nsteps < NCCLSVC_EPOCH_STEPS ? e->nsteps : NCCLSVC_EPOCH_STEPS;
	for (uint32_t i = 0; i < n; i++)
		steps[i] = e->steps[(e->nsteps - 1 - i) % NCCLSVC_EPOCH_STEPS];
	return n;
}
