/* SPDX-License-Identifier: Apache-2.0
 * --plot: the series and the title. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "child_process.h"
#include "collective.h"

/* The shortest time gives the highest bandwidth. */
static struct spread bandwidth(const struct work *w, const struct value *f, enum figure time,
			       enum figure least)
{
	return (struct spread){work_busbw(w, f[time].number), work_busbw(w, f[least + 1].number),
			       work_busbw(w, f[least].number)};
}

void collective_plot_row(struct bench *b, const struct work *w,
			 const struct value figures[2][FIGURES])
{
	const struct value *f = figures[0];
	if (!b->options->plot_path)
		return;
	const struct plot_point point = {
		.bytes = work_bytes(w),
		.of = {[PLOT_RATIO] = {f[RATIO].number, f[RATIO_RANGE].number,
				       f[RATIO_RANGE + 1].number},
		       [PLOT_SERVICE] = bandwidth(w, f, TIME, TIME_RANGE),
		       [PLOT_BASELINE] = bandwidth(w, f, BASE, BASE_RANGE)}};
	plot_add(&b->plot, &point);
}

static void describe_work(const struct bench *b, char *buf, size_t size)
{
	const struct options *o = b->options;
	const char *place = work_can_be_in_place(o->op) ? ", out of place" : "";
	const char *type = ncclsvc_type_name((unsigned)__builtin_ctz(o->types));
	const char *redop = ncclsvc_redop_name((unsigned)__builtin_ctz(o->redops));
	snprintf(buf, size, "%s%s%s%s; %s", type, work_reduces(o->op) ? " " : "",
		 work_reduces(o->op) ? redop : "", place, collective_waits(o));
}

static void describe_rounds(const struct bench *b, char *buf, size_t size)
{
	const struct options *o = b->options;
	char beside[COMMAND_TEXT_BYTES + 32] = "";
	if (b->n > BASELINE)
		snprintf(beside, sizeof(beside), ", in turn with %s",
			 b->subjects[BASELINE].ranks.library);
	snprintf(buf, size, "median, minimum and maximum of %u rounds%s", o->rounds, beside);
}

/* NCCL reduces faster with NVLink SHARP, so the plot says whether it was allowed. */
static bool describe_gpus(struct bench *b, char *buf, size_t size)
{
	const struct command command = {.kind = COMMAND_PLACE};
	struct ranks *ranks = &b->subjects[SERVICE].ranks;
	const char *nvls = getenv("NCCL_NVLS_ENABLE");
	if (!ranks_do(ranks, &command))
		return false;
	const struct reply *first = &ranks->members[0].reply;
	snprintf(buf, size, "%s, %s MPS; NCCL_NVLS_ENABLE %s", first->text,
		 first->mps == NCCLSVC_MPS_ACTIVE ? "with" : "without", nvls ? nvls : "unset");
	return true;
}

bool collective_plot_end(struct bench *b)
{
	const struct options *o = b->options;
	struct plot *p = &b->plot;
	char title[96], work[256], rounds[COMMAND_TEXT_BYTES + 96],
		machine[COMMAND_TEXT_BYTES + 96];
	if (!o->plot_path)
		return true;
	if (p->no_memory) {
		complain("out of memory for the plot");
		return false;
	}
	snprintf(title, sizeof(title), "%s, %u ranks on %s", perf_op_name(o->op), o->ranks,
		 o->cuda ? "GPUs" : "the host");
	describe_work(b, work, sizeof(work));
	describe_rounds(b, rounds, sizeof(rounds));
	if (!o->cuda)
		report_cpu_model(machine, sizeof(machine));
	else if (!describe_gpus(b, machine, sizeof(machine)))
		return false;
	p->title = title;
	p->notes[0] = work;
	p->notes[1] = rounds;
	p->notes[2] = machine;
	p->command = o->command_line;
	p->baseline = b->n > BASELINE ? b->subjects[BASELINE].ranks.library : NULL;
	FILE *f = fopen(o->plot_path, "we");
	if (f)
		plot_write(p, f);
	const bool good = f && !ferror(f);
	if ((f && fclose(f)) || !good) {
		complain("can't write the plot to %s: %s", o->plot_path, strerror(errno));
		return false;
	}
	return true;
}
