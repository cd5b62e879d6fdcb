/* SPDX-License-Identifier: Apache-2.0
 * Profiler ranges, if the build found NVTX. Each has the tag and the peer. */
#ifndef CLIENT_PROFILER_RANGES_H
#define CLIENT_PROFILER_RANGES_H

#include <stdint.h>

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

static inline uint64_t nvtx_start(const char *phase, int64_t tag, int peer)
{
	char text[96];
	snprintf(text, sizeof(text), "%s tag %lld peer %d", phase, (long long)tag, peer);
	return nvtxRangeStartA(text);
}

static inline void nvtx_stop(uint64_t range)
{
	if (range)
		nvtxRangeEnd(range);
}
#else
static inline uint64_t nvtx_start(const char *phase, int64_t tag, int peer)
{
	(void)phase, (void)tag, (void)peer;
	return 0;
}

static inline void nvtx_stop(uint64_t range)
{
	(void)range;
}
#endif

#endif
