/* SPDX-License-Identifier: Apache-2.0
 * The list of checks, each with its level and its sentence. */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void doctor_say(struct doctor_report *r, const char *check, enum doctor_level level,
		const char *format, ...)
{
	char line[1024];
	struct text t = TEXT_INIT(-1);
	va_list list;
	va_start(list, format);
	vsnprintf(line, sizeof(line), format, list);
	va_end(list);
	text_name(&t, line, sizeof(line)); /* it may contain names chosen by others */
	r->checks = ctl_grow(r->checks, r->n, &r->room, sizeof(*r->checks));
	r->checks[r->n++] = (struct doctor_check){check, level, text_steal(&t)};
}

void doctor_free(struct doctor_report *r)
{
	for (size_t i = 0; i < r->n; i++)
		free(r->checks[i].text);
	free(r->checks);
	*r = (struct doctor_report){0};
}

enum doctor_level doctor_worst(const struct doctor_report *r)
{
	enum doctor_level worst = DOCTOR_OK;
	for (size_t i = 0; i < r->n; i++)
		if (r->checks[i].level > worst)
			worst = r->checks[i].level;
	return worst;
}

const char *doctor_level_name(enum doctor_level level)
{
	static const char *const names[] = {"OK", "NOTE", "WARNING", "PROBLEM"};
	return names[level];
}
