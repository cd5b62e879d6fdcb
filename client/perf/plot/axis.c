/* SPDX-License-Identifier: Apache-2.0 */
#include "axis.h"

#include <math.h>

#include "svg.h"

/* ---- Sizes ---- */

#define SIZE_MARKS 12 /* at most */

/* A size of 0, from blocks smaller than an element, is drawn as 1 byte. */
static double log2_of(uint64_t bytes)
{
	return log2(bytes ? (double)bytes : 1);
}

struct size_axis size_axis_over(uint64_t low, uint64_t high)
{
	const double from = log2_of(low), to = log2_of(high);
	const double room = to > from ? (to - from) / 40 : 1;
	return (struct size_axis){from - room, to + room};
}

double size_axis_x(const struct size_axis *a, uint64_t bytes)
{
	return AXIS_LEFT +
	       (log2_of(bytes) - a->low) / (a->high - a->low) * (AXIS_RIGHT - AXIS_LEFT);
}

/* "512", "4K". Returns buf. */
static const char *size_text(uint64_t bytes, char *buf, size_t size)
{
	static const char *const units[] = {"", "K", "M", "G", "T", "P", "E"};
	unsigned unit = 0;
	for (; bytes >= 1024; bytes /= 1024)
		unit++;
	snprintf(buf, size, "%u%s", (unsigned)bytes, units[unit]);
	return buf;
}

void size_axis_draw(const struct size_axis *a, FILE *f, double bottom)
{
	const int first = (int)fmax(0, ceil(a->low)), last = (int)floor(a->high);
	const int step = (last - first) / SIZE_MARKS + 1;
	char text[32];
	for (int power = first; power <= last; power += step) {
		const uint64_t bytes = UINT64_C(1) << power;
		svg_text(f, "class=\"mark\" text-anchor=\"middle\"", size_axis_x(a, bytes),
			 bottom + 16, size_text(bytes, text, sizeof(text)));
	}
	svg_text(f, "class=\"mark\" text-anchor=\"end\"", AXIS_RIGHT, bottom + 32, "size (bytes)");
}

/* ---- Values ---- */

/* Marks within a power of ten; a wider range gets fewer. */
struct marks {
	double range; /* maximum ratio of the highest to the lowest value */
	int n;
	double of[10];
};

static const struct marks all_marks[] = {
	{5, 10, {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}},
	{100, 3, {1, 2, 5}},
	{INFINITY, 1, {1}},
};

static double mark(const struct marks *m, int i)
{
	const int tens = (int)floor((double)i / m->n);
	return m->of[i - tens * m->n] * pow(10, tens);
}

struct value_axis value_axis_over(double low, double high, double top)
{
	struct value_axis a = {.marks = all_marks, .top = top};
	while (high / low > a.marks->range)
		a.marks++;
	a.first = (int)floor(log10(low)) * a.marks->n;
	while (mark(a.marks, a.first + 1) <= low)
		a.first++;
	a.last = a.first + 1;
	while (mark(a.marks, a.last) < high)
		a.last++;
	return a;
}

double value_axis_y(const struct value_axis *a, double value)
{
	const double low = log(mark(a->marks, a->first)), high = log(mark(a->marks, a->last));
	return a->top + AXIS_HEIGHT * (high - log(value)) / (high - low);
}

void value_axis_draw(const struct value_axis *a, FILE *f)
{
	char text[32];
	for (int i = a->first; i <= a->last; i++) {
		const double value = mark(a->marks, i), y = value_axis_y(a, value);
		fprintf(f, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", AXIS_LEFT, y, AXIS_RIGHT);
		snprintf(text, sizeof(text), "%.4g", value);
		svg_text(f, "class=\"mark\" text-anchor=\"end\"", AXIS_LEFT - 8, y + 4, text);
	}
}
