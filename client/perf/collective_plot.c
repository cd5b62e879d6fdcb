/* SPDX-License-Identifier: Apache-2.0
 * --plot: what of the rows is drawn, and what is written above it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective.h"
#include "process.h"

/* The least time is the highest bandwidth. */
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
	snprintf(buf, size, "%s%s%s, %s memory%s; %s", type, work_reduces(o->op) ? " " : "",
		 work_reduces(o->op) ? redop : "", memory_name(o), place, collective_waits(o));
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

/* NCCL reduces faster with NVLink SHARP, so a plot says whether that was allowed. */
static void describe_machine(const struct options *o, char *buf, size_t size)
{
	char model[128];
	const char *nvls = getenv("NCCL_NVLS_ENABLE");
	report_cpu_model(model, sizeof(model));
	snprintf(buf, size, "%s%s%s", model, o->cuda ? "; NCCL_NVLS_ENABLE " : "",
		 !o->cuda ? ""
		 : nvls	  ? nvls
			  : "unset");
}

bool collective_plot_end(struct bench *b)
{
	const struct options *o = b->options;
	struct plot *p = &b->plot;
	char title[96], work[256], rounds[COMMAND_TEXT_BYTES + 96], machine[192];
	if (!o->plot_path)
		return true;
	if (p->no_memory) {
		complain("out of memory for the plot");
		return false;
	}
	snprintf(title, sizeof(title), "%s, %u ranks, device %s", perf_op_name(o->op), o->ranks,
		 o->cuda ? "cuda" : "host");
	describe_work(b, work, sizeof(work));
	describe_rounds(b, rounds, sizeof(rounds));
	describe_machine(o, machine, sizeof(machine));
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
