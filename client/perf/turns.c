/* SPDX-License-Identifier: Apache-2.0
 * The subjects of a comparison take turns, round by round. */
#include "collective.h"

#include <inttypes.h>

#define FIRST_SPINS 20000

uint64_t turns_seed(struct bench *b)
{
	b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return b->seed ^ perf_now_ns() << 20;
}

bool turns_round(struct subject *s, const struct command *command, unsigned round)
{
	cores_start(&s->cores);
	if (!ranks_do(&s->ranks, command))
		return false;
	cores_stop(&s->cores);
	static const size_t fields[MEASURES] = {[MEAN] = REPLY(elapsed_ns),
						[SUBMIT] = REPLY(cpu_ns),
						[MEDIAN] = REPLY(median_ns),
						[P99] = REPLY(p99_ns)};
	for (int m = 0; m < MEASURES; m++) {
		const double of = m == MEAN || m == SUBMIT ? (double)command->iters : 1;
		s->us[m][round] = ranks_mean(&s->ranks, fields[m]) / 1e3 / of;
	}
	return true;
}

bool turns_fit(struct bench *b, struct ranks *ranks, const struct work *w, uint64_t *iters)
{
	const struct options *o = b->options;
	struct command command = {.kind = COMMAND_TIME,
				  .fill = 1,
				  .sync = SYNC_EACH,
				  .iters = 1,
				  .seed = turns_seed(b),
				  .work = *w};
	double round_us = o->time_cap_s * 1e6 / o->rounds, us;
	for (int attempt = 0; attempt < 2; attempt++) {
		if (!ranks_do(ranks, &command))
			return false;
		us = fmax(ranks_mean(ranks, REPLY(elapsed_ns)) / 1e3, (double)o->every_us);
		if (us * (double)*iters <= round_us)
			return true;
		command.fill = 0;
	}
	uint64_t fitting = (uint64_t)(round_us / us);
	*iters = fitting ? fitting : 1;
	return true;
}

bool turns_run(struct bench *b, const struct command *command, unsigned n)
{
	const struct work *w = &command->work;
	for (unsigned i = 0; i < n; i++)
		cores_clear(&b->subjects[i].cores);
	for (unsigned round = 0; round < b->options->rounds; round++) {
		report_progress(&b->report, "%s %" PRIu64 " B %s: round %u of %u",
				perf_op_name(w->op), work_bytes(w),
				w->in_place ? "in place" : "out of place", round + 1,
				b->options->rounds);
		for (unsigned i = 0; i < n; i++) {
			if (!turns_round(&b->subjects[(round + i) % n], command, round))
				return false;
		}
	}
	return true;
}

bool turns_calibrate(struct bench *b, unsigned ms)
{
	struct command command = {
		.kind = COMMAND_TIME,
		.kernels = TURNS_KERNELS,
		.spins = FIRST_SPINS,
		.work = {.op = NCCLSVC_BARRIER, .nranks = b->subjects[SERVICE].ranks.n}};
	for (int attempt = 0; attempt < 3;
	     attempt++) { /* the first attempt also compiles the kernel */
		if (!ranks_do(&b->subjects[SERVICE].ranks, &command))
			return false;
		double took = ranks_mean(&b->subjects[SERVICE].ranks, REPLY(elapsed_ns)) / 1e6;
		double spins = command.spins * ms / (took > 0 ? took : 1);
		if (attempt)
			command.spins = spins < 1 ? 1 : spins > 1e9 ? 1000000000 : (uint32_t)spins;
	}
	b->spins = command.spins;
	return b->n == 1 || ranks_do(&b->subjects[BASELINE].ranks, &command);
}
