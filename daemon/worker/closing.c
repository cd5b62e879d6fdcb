/* SPDX-License-Identifier: Apache-2.0
 * Requests to close memory that are answered when it is released. The owner waits for that before
 * freeing the memory. */
#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "worker.h"

struct closing {
	struct closing *prev, *next;
	struct import *import;
	uint64_t key, until_ns;
};

static void answer(struct worker *w, uint64_t key, int result, const char *text)
{
	struct worker_message m = {.kind = WORKER_REGION_CLOSE, .key = key, .result = result};
	snprintf(m.text, sizeof(m.text), "%s", text);
	worker_send(w, &m);
}

static void end(struct worker *w, struct closing *c, int result, const char *text)
{
	answer(w, c->key, result, text);
	c->import->closing = NULL;
	DL_DELETE(w->closings, c);
	free(c);
}

static bool begin(struct worker *w, struct import *i, const struct worker_message *m)
{
	struct closing *c = malloc(sizeof(*c));
	if (!c)
		return false;
	*c = (struct closing){
		.import = i, .key = m->key, .until_ns = clock_now() + m->region.within_ns};
	i->closing = c;
	DL_APPEND(w->closings, c);
	if (!w->closings_due_ns || c->until_ns < w->closings_due_ns)
		w->closings_due_ns = c->until_ns;
	return true;
}

void import_close(struct worker *w, const struct worker_message *m)
{
	struct import *i = import_find(w, m->region.address);
	if (i)
		import_put(w, i);
	if (!m->region.within_ns)
		return;
	/* A range that is about to be released uses its parts until then. Other users stay. */
	if (!i || (i->users && !w->ranges_leaving))
		answer(w, m->key, NCCLSVC_OK, "");
	else if (i->closing || !begin(w, i, m))
		answer(w, m->key, NCCLSVC_TIMEOUT, "another session waits for the same memory");
}

void closing_end(struct worker *w, struct import *i)
{
	if (i->closing)
		end(w, i->closing, NCCLSVC_OK, "");
}

void closings_watch(struct worker *w, uint64_t now)
{
	struct closing *c, *next;
	uint64_t first = 0;
	if (!w->closings_due_ns || now < w->closings_due_ns)
		return;
	DL_FOREACH_SAFE (w->closings, c, next)
		if (now >= c->until_ns)
			end(w, c, NCCLSVC_TIMEOUT, "the memory is released when the GPU is idle");
		else if (!first || c->until_ns < first)
			first = c->until_ns;
	w->closings_due_ns = first;
}
