/* SPDX-License-Identifier: Apache-2.0
 * The words of the analysis. A paragraph says what is known of one cause, then what the culprits'
 * processes are doing, and what to do next: a command to paste. */
#ifndef CTL_WHY_SENTENCES_H
#define CTL_WHY_SENTENCES_H

#include "finding.h"

/* phrases.c: parts of sentences. */
void why_add_rank(const struct why *w, uint64_t comm, int32_t rank, struct text *out);
void why_add_ranks(const struct why *w, uint64_t comm, const int32_t *ranks, size_t n,
		   struct text *out);
void why_add_comm(const struct why *w, uint64_t id, uint32_t nranks, struct text *out);
void why_add_operation(const char *op, uint64_t seq, uint32_t graph, struct text *out);
void why_add_task(const ncclsvc_task_info *t, struct text *out);
/* With type, size and communicator; peer: also with the peer of a Send or Recv. */
void why_add_whole_task(const struct why *w, const ncclsvc_task_info *t, bool peer,
			struct text *out);
/* The group's ranks, and how long they have waited in which operation. */
void why_add_waiting(const struct why *w, const struct why_group *g, bool peer, struct text *out);
void why_add_silence(const ncclsvc_node_info *n, struct text *out);
void why_add_device(const struct why *w, const ncclsvc_member_info *m, struct text *out);
/* The refusal that the daemon lists, if any. */
void why_tell_refused(const ncclsvc_comm_info *c, struct text *out);
/* The sentence that began there begins with a capital letter. */
void why_capitalize(struct text *out, size_t begin);

/* sentences_waiting.c: ranks that wait for other ranks. */
void why_tell_waiting(const struct why *w, const struct why_group *g, const struct why_fault *fault,
		      struct text *out);
void why_tell_deadlock(const struct why *w, const struct why_group *g, const struct why_path *p,
		       struct text *out);
void why_tell_held(const struct why *w, const struct why_group *g, struct text *out);
void why_tell_request(const struct why *w, const struct why_finding *f, struct text *out);

/* sentences_called.c: operations that all ranks have called. */
void why_tell_input(const struct why *w, const struct why_group *g, struct text *out);
void why_tell_running(const struct why *w, const struct why_group *g, struct text *out);
void why_tell_silent(const struct why *w, const struct why_group *g, const ncclsvc_node_info *n,
		     struct text *out);
void why_tell_streams(const struct why *w, const struct why_group *g, const int32_t *ranks,
		      size_t n, struct text *out);
void why_tell_launched(const struct why *w, const struct why_group *g, const int32_t *ranks,
		       size_t n, struct text *out);
void why_tell_worker(const struct why *w, const struct why_group *g, const ncclsvc_member_info *bad,
		     struct text *out);

/* The ranks that have joined an incomplete communicator, and those that have not. */
struct why_census {
	int32_t *joined, *dead, *broken, *absent, *unknown;
	size_t njoined, ndead, nbroken, nabsent, nunknown;
};

/* sentences_joining.c: communicators that lack members. */
void why_tell_joining(const struct why *w, const struct why_group *g, const struct why_census *c,
		      struct text *out);

/* sentences_next.c: adds the culprits' process states, what else waits for them, and what to do
 * next. */
void why_tell_end(const struct why *w, struct why_finding *f, struct text *out);
/* The command to run next for one culprit; nothing if there is none. */
void why_add_command(const struct why *w, const struct why_culprit *c, struct text *out);

#endif
