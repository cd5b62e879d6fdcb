/* SPDX-License-Identifier: Apache-2.0
 * ncclConfig_t. maxCTAs and CTAPolicy tune the communicator's own kernels. NCCL's communicators
 * belong to the daemon, shared by all who use the same GPUs, so NCCL is tuned in the daemon's
 * environment (NCCL's variables). The other tuning fields are checked as NCCL checks them, logged
 * with NCCL_DEBUG=INFO, and otherwise ignored. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_config.h"

struct field {
	const char *name;
	size_t at;
	unsigned since; /* the release that added the field: older structs have padding there, or
			   end before it */
	int least, most;
	const char *variable; /* overrides the field, which is used; NULL: it is not */
};

#define FIELD(name, since, least, most)                                                            \
	{                                                                                          \
#name, offsetof(ncclConfig_t, name), since, least, most, NULL                      \
	}
#define USED_FIELD(name, since, least, most, variable)                                             \
	{                                                                                          \
#name, offsetof(ncclConfig_t, name), since, least, most, variable                  \
	}

/* The fields that only tune. */
enum { MAX_CTAS, CTA_POLICY };
static const struct field tuning[] = {
	[MAX_CTAS] = USED_FIELD(maxCTAs, 21700, 1, INT_MAX, "NCCL_MAX_CTAS"),
	[CTA_POLICY] =
		USED_FIELD(CTAPolicy, 22700, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO,
			   "NCCL_CTA_POLICY"),
	FIELD(cgaClusterSize, 21700, 0, INT_MAX),
	FIELD(minCTAs, 21700, 1, INT_MAX),
	FIELD(splitShare, 21800, 0, 1),
	FIELD(trafficClass, 22500, INT_MIN, INT_MAX),
	FIELD(collnetEnable, 22700, 0, 1),
	FIELD(shrinkShare, 22700, 0, 1),
	FIELD(nvlsCTAs, 22700, 1, INT_MAX),
	FIELD(nChannelsPerNetPeer, 22800, 1, 64),
	FIELD(nvlinkCentricSched, 22800, 0, 1),
	FIELD(graphUsageMode, 22900, 0, 2),
	FIELD(numRmaCtx, 22900, 0, INT_MAX),
	FIELD(maxP2pPeers, 23000, 1, INT_MAX),
	FIELD(graphStreamOrdering, 23005, 0, 1),
	FIELD(launchOrderImplicit, 23100, 0, 1),
	FIELD(numRmaSig, 23100, 0, INT_MAX),
	FIELD(rmaEagerInit, 23100, 0, 1),
	FIELD(hostCftMode, 23100, 1, 3),
	FIELD(nvlsHostMode, 23200, 0, INT_MAX),
};

static int value_of(const ncclConfig_t *c, const struct field *f)
{
	int value;
	memcpy(&value, (const char *)c + f->at, sizeof(value));
	return value;
}

static void unset(ncclConfig_t *c, const struct field *f)
{
	const int value = NCCL_INT_UNSET;
	memcpy((char *)c + f->at, &value, sizeof(value));
}

/* Fields that an older config lacks count as unset. */
static ncclResult_t take(const ncclConfig_t *from, const char *function, ncclConfig_t *c)
{
	const size_t n = sizeof(tuning) / sizeof(tuning[0]);
	*c = (ncclConfig_t){.size = sizeof(*c), .blocking = NCCL_INT_UNSET};
	if (from->magic != NCCL_MAGIC || from->size < offsetof(ncclConfig_t, cgaClusterSize))
		return fail(ncclInvalidArgument,
			    "%s: config was not initialized with NCCL_CONFIG_INITIALIZER",
			    function);
	if (from->size > sizeof(*c))
		inform("%s: config is from a newer NCCL (%u): fields newer than 2.32 are ignored",
		       function, from->version);
	memcpy(c, from, from->size < sizeof(*c) ? from->size : sizeof(*c));
	for (size_t i = 0; i < n; i++)
		if (from->version < tuning[i].since || from->size < tuning[i].at + sizeof(int))
			unset(c, &tuning[i]);
	return ncclSuccess;
}

static ncclResult_t check_tuning(const ncclConfig_t *c, const char *function)
{
	for (size_t i = 0; i < sizeof(tuning) / sizeof(tuning[0]); i++) {
		const struct field *f = &tuning[i];
		int value = value_of(c, f);
		if (value == NCCL_INT_UNSET)
			continue;
		if (value < f->least || value > f->most)
			return fail(ncclInvalidArgument, "%s: config.%s is %d, must be %d to %d",
				    function, f->name, value, f->least, f->most);
		if (!f->variable)
			inform("%s: config.%s = %d is ignored: the daemon tunes its shared "
			       "communicators",
			       function, f->name, value);
	}
	if (c->minCTAs != NCCL_INT_UNSET && c->maxCTAs != NCCL_INT_UNSET && c->minCTAs > c->maxCTAs)
		return fail(ncclInvalidArgument, "%s: config.minCTAs is %d, but maxCTAs only %d",
			    function, c->minCTAs, c->maxCTAs);
	if (c->netName)
		inform("%s: config.netName = %.64s is ignored: the daemon chooses the network",
		       function, c->netName);
	return ncclSuccess;
}

/* The value of the field's variable, else of the config, which may be NULL. */
static int tuned(const ncclConfig_t *c, const struct field *f)
{
	const int value = c ? value_of(c, f) : NCCL_INT_UNSET;
	const char *text = getenv(f->variable);
	char *end;
	if (!text || !*text)
		return value;
	errno = 0;
	const long given = strtol(text, &end, 10);
	if (!errno && !*end && given >= f->least && given <= f->most)
		return (int)given;
	inform("%s is '%.64s', not a number from %d to %d: it is ignored", f->variable, text,
	       f->least, f->most);
	return value;
}

static void tune(const ncclConfig_t *c, struct config *out)
{
	const int most = tuned(c, &tuning[MAX_CTAS]), policy = tuned(c, &tuning[CTA_POLICY]);
	if (most != NCCL_INT_UNSET)
		out->max_ctas = (unsigned)most;
	if (policy != NCCL_INT_UNSET)
		out->zero_ctas = policy & NCCL_CTA_POLICY_ZERO;
}

ncclResult_t config_read(const ncclConfig_t *config, const struct ncclComm *parent,
			 const char *function, struct config *out)
{
	ncclConfig_t c;
	*out = (struct config){.blocking = !parent || parent->blocking};
	if (!config) {
		out->max_ctas = parent ? parent->max_ctas : 0;
		out->zero_ctas = parent && parent->zero_ctas;
		tune(NULL, out);
		return ncclSuccess;
	}
	ncclResult_t r = take(config, function, &c);
	if (!r && c.blocking != NCCL_INT_UNSET && c.blocking != 0 && c.blocking != 1)
		r = fail(ncclInvalidArgument, "%s: config.blocking is %d, must be 0 or 1", function,
			 c.blocking);
	if (!r)
		r = check_tuning(&c, function);
	if (r)
		return r;
	if (c.blocking != NCCL_INT_UNSET)
		out->blocking = c.blocking;
	tune(&c, out);
	snprintf(out->name, sizeof(out->name), "%s", c.commName ? c.commName : "");
	return ncclSuccess;
}

/* ---- Configuration of one collective ---- */

static bool has(const ncclCollConfig_t *c, size_t end)
{
	return c->size >= end;
}
#define HAS(config, field) has(config, offsetof(ncclCollConfig_t, field) + sizeof((config)->field))

ncclResult_t coll_config_read(const ncclCollConfig_t *c, const char *function, CUevent *launched)
{
	*launched = NULL;
	if (!c)
		return ncclSuccess;
	if (c->magic != NCCL_MAGIC || !HAS(c, version))
		return fail(ncclInvalidArgument,
			    "%sConfig: config was not initialized with NCCL_COLLCONFIG_INITIALIZER",
			    function);
	if (HAS(c, forceAlgSelection) && c->algSelection && c->algSelection[0] &&
	    c->forceAlgSelection)
		return fail(
			ncclInvalidUsage,
			"%sConfig: the daemon chooses the algorithm, so '%.64s' cannot be forced: "
			"set forceAlgSelection to 0, or NCCL_ALGO in the daemon's environment",
			function, c->algSelection);
	if (HAS(c, launchCompletionEvent))
		*launched = c->launchCompletionEvent;
	return ncclSuccess;
}
