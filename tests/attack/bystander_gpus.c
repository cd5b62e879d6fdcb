/* SPDX-License-Identifier: Apache-2.0
 * The other user's work on GPUs. */
#include <unistd.h>

#include "bystander.h"
#include "gpus.h"

#define WORDS	  4
#define ENTRIES	  64
#define REDUCE_MS 1
#define WAIT_MS	  600000

static bool fail(struct gauge *g, const struct answer *answer)
{
	gauge_fail(g, answer->header.result,
		   answer->header.result == CONN_LOST ? "" : answer->body.error.text);
	return false;
}

/* Runs both ranks' AllReduce in the workers. Returns the first bad result. */
static int reduce(struct rank ranks[GPUS], const uint32_t region[GPUS])
{
	int result = 0;
	for (int i = 0; i < GPUS; i++) {
		struct svc_record r = rank_record(&ranks[i]);
		r.op = NCCLSVC_ALL_REDUCE;
		r.type = NCCLSVC_FLOAT32;
		r.count = WORDS;
		r.src_region = r.dst_region = region[i];
		conn_submit(ranks[i].conn, &r);
	}
	for (int i = 0; i < GPUS && !result; i++)
		result = conn_wait(ranks[i].conn, ranks[i].conn->last, WAIT_MS);
	return result;
}

void gpu_reduces(struct bystanders *b)
{
	static struct conn c[GPUS];
	struct gauge *g = &b->reduce;
	struct rank ranks[GPUS];
	struct answer answer = {0};
	uint32_t region[GPUS];
	g->now_of = "open";
	for (int i = 0; i < GPUS; i++)
		if (!conn_open(&c[i], b->socket) || !conn_attach(&c[i], ENTRIES) ||
		    !(region[i] = gpu_memory(&c[i], i, GPU_PAGE, &answer))) {
			fail(g, &answer);
			return;
		}
	if (!gpu_join(c, NULL, ranks)) {
		gauge_fail(g, CONN_LOST, "JOIN");
		return;
	}
	b->ready++;
	for (int result = 0; !result; pause_ms(REDUCE_MS)) {
		gauge_begin(g, "AllReduce");
		result = reduce(ranks, region);
		gauge_end(g);
		if (result)
			gauge_fail(g, result, "");
	}
}

void gpu_waits(struct bystanders *b)
{
	static struct conn c[GPUS];
	struct gauge *g = &b->reduce;
	struct rank ranks[GPUS];
	struct answer answer = {0};
	struct peer_control *controls = NULL;
	uint32_t staging[GPUS];
	for (int i = 0; i < GPUS; i++)
		if (!conn_open(&c[i], b->socket) ||
		    !(staging[i] = gpu_memory(&c[i], i, PEER_STAGING, &answer))) {
			fail(g, &answer);
			return;
		}
	if (!gpu_join(c, staging, ranks) || !(controls = gpu_controls(&ranks[0]))) {
		gauge_fail(g, CONN_LOST, "JOIN with staging memory");
		return;
	}
	gpu_kernel_waits(controls, 0);
	b->ready++;
	while (!atomic_load_explicit(&controls->abort, memory_order_acquire))
		pause_ms(10);
	gauge_fail(g, CONN_LOST, "the epoch of the kernel that waits has ended");
}

void gpu_session(struct bystanders *b, int device)
{
	struct gauge *g = &b->request;
	struct answer answer = {.header.result = CONN_LOST};
	struct conn c;
	gauge_begin(g, "open");
	const bool open = conn_open(&c, b->socket);
	gauge_end(g);
	if (!open) {
		fail(g, &answer);
		return;
	}
	gauge_begin(g, "REGION_CUDA_FD");
	const uint32_t region = gpu_memory(&c, device, GPU_PAGE, &answer);
	gauge_end(g);
	if (!region) {
		fail(g, &answer);
	} else {
		gauge_begin(g, "REGION_DEL");
		const bool good = gpu_forget(&c, region);
		gauge_end(g);
		if (!good)
			gauge_fail(g, CONN_LOST, "");
	}
	conn_close(&c);
}
