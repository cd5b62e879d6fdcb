/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#define LEVEL_WIDTH 8

static const char *colour_of(enum doctor_level level)
{
	static const char *const codes[] = {"\033[32m", "", "\033[33m", "\033[31m"};
	return codes[level];
}

static void doctor_json(const struct view *v, const struct doctor_report *r)
{
	struct json j = view_json_begin(v);
	put_string(&j, "verdict", doctor_level_name(doctor_worst(r)), SIZE_MAX);
	put_array(&j, "checks");
	for (size_t i = 0; i < r->n; i++) {
		put_object(&j, NULL);
		put_string(&j, "check", r->checks[i].check, SIZE_MAX);
		put_string(&j, "level", doctor_level_name(r->checks[i].level), SIZE_MAX);
		put_string(&j, "text", r->checks[i].text, SIZE_MAX);
		put_object_end(&j);
	}
	put_array_end(&j);
	view_json_end(&j);
}

void view_doctor(const struct view *v, const struct doctor_report *r)
{
	size_t counts[4] = {0};
	if (v->args->json) {
		doctor_json(v, r);
		return;
	}
	for (size_t i = 0; i < r->n; i++) {
		const struct doctor_check *c = &r->checks[i];
		const char *name = doctor_level_name(c->level);
		const char *colour = v->colour ? colour_of(c->level) : "";
		counts[c->level]++;
		text_printf(v->out, "%s%-*s%s ", colour, LEVEL_WIDTH, name,
			    *colour ? "\033[0m" : "");
		view_paragraph(v, LEVEL_WIDTH + 1, c->text);
	}
	text_printf(v->out, "%zu problem%s, %zu warning%s.\n", counts[DOCTOR_PROBLEM],
		    counts[DOCTOR_PROBLEM] == 1 ? "" : "s", counts[DOCTOR_WARNING],
		    counts[DOCTOR_WARNING] == 1 ? "" : "s");
}
