/* SPDX-License-Identifier: Apache-2.0
 * Both axes are logarithmic: sizes and bandwidths span many powers of ten, and a ratio of 2 is as
 * far from 1 as one of 0.5. Lengths are in pixels. */
#include "plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "printable.h"

#define WIDTH	     760
#define LEFT	     64
#define RIGHT	     (WIDTH - 24)
#define NOTE_HEIGHT  18
#define PANEL_HEIGHT 270 /* with its heading, and the sizes below */
#define PLOT_TOP     34	 /* from the panel's top */
#define PLOT_HEIGHT  190
#define SIZE_MARKS   12 /* at most, on the axis of sizes */

void plot_add(struct plot *p, const struct plot_point *point)
{
	/* The capacity is the power of two from n on. */
	if (!(p->n & (p->n - 1))) {
		struct plot_point *more = realloc(p->points, (p->n ? 2 * p->n : 1) * sizeof(*more));
		if (!more) {
			p->no_memory = true;
			return;
		}
		p->points = more;
	}
	p->points[p->n++] = *point;
}

void plot_free(struct plot *p)
{
	free(p->points);
	*p = (struct plot){0};
}

/* ---- Text ---- */

static void put_text(FILE *f, const char *text)
{
	const size_t size = strlen(text) + 1;
	char *clean = malloc(size);
	if (!clean)
		return;
	memcpy(clean, text, size);
	for (const char *c = svc_make_printable(clean, size); *c; c++) {
		if (*c == '&')
			fputs("&amp;", f);
		else if (*c == '<')
			fputs("&lt;", f);
		else if (*c == '>')
			fputs("&gt;", f);
		else
			fputc(*c, f);
	}
	free(clean);
}

static void text_at(FILE *f, const char *attributes, double x, double y, const char *text)
{
	fprintf(f, "<text %s x=\"%.1f\" y=\"%.1f\">", attributes, x, y);
	put_text(f, text);
	fputs("</text>\n", f);
}

/* "512", "4K", "1.5M". Returns buf. */
static const char *size_text(double bytes, char *buf, size_t size)
{
	static const char *const units[] = {"", "K", "M", "G", "T", "P", "E"};
	unsigned unit = 0;
	for (; bytes >= 1024; bytes /= 1024)
		unit++;
	snprintf(buf, size, "%.4g%s", bytes, units[unit]);
	return buf;
}

/* ---- The axis of sizes ---- */

struct sizes {
	double low, high; /* as log2_of */
};

/* Sizes of 0, of blocks that are smaller than an element, stand with 1 byte. */
static double log2_of(uint64_t bytes)
{
	return log2(bytes ? (double)bytes : 1);
}

static struct sizes sizes_of(const struct plot *p)
{
	struct sizes s = {INFINITY, -INFINITY};
	for (size_t i = 0; i < p->n; i++) {
		s.low = fmin(s.low, log2_of(p->points[i].bytes));
		s.high = fmax(s.high, log2_of(p->points[i].bytes));
	}
	const double room = s.high > s.low ? (s.high - s.low) / 40 : 1;
	return (struct sizes){s.low - room, s.high + room};
}

static double x_of(const struct sizes *s, double log2_bytes)
{
	return LEFT + (log2_bytes - s->low) / (s->high - s->low) * (RIGHT - LEFT);
}

static void draw_sizes(FILE *f, const struct sizes *s, double bottom)
{
	const int first = (int)ceil(s->low), last = (int)floor(s->high);
	const int step = (last - first) / SIZE_MARKS + 1;
	char text[32];
	for (int mark = first; mark <= last; mark += step)
		text_at(f, "class=\"mark\" text-anchor=\"middle\"", x_of(s, mark), bottom + 16,
			size_text(exp2(mark), text, sizeof(text)));
	text_at(f, "class=\"mark\" text-anchor=\"end\"", RIGHT, bottom + 32, "size (bytes)");
}

/* ---- The axis of values ---- */

/* Marks within a power of ten; the wider the range, the fewer. */
struct marks {
	double range; /* the highest value by the lowest, at most */
	int n;
	double of[10];
};

static const struct marks all_marks[] = {
	{5, 10, {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}},
	{100, 3, {1, 2, 5}},
	{INFINITY, 1, {1}},
};

struct values {
	const struct marks *marks;
	int first, last; /* marks, which number on over the powers of ten */
	double top;	 /* in the picture */
};

static double mark(const struct marks *m, int i)
{
	const int tens = (int)floor((double)i / m->n);
	return m->of[i - tens * m->n] * pow(10, tens);
}

static bool is_drawn(const struct spread *s)
{
	return isfinite(s->value) && s->low > 0 && isfinite(s->high);
}

/* The range of some series, from the mark below to the mark above. */
static struct values values_of(const struct plot *p, unsigned first, unsigned last, double top)
{
	double low = INFINITY, high = -INFINITY;
	for (size_t i = 0; i < p->n; i++) {
		for (unsigned series = first; series <= last; series++) {
			const struct spread *s = &p->points[i].of[series];
			low = is_drawn(s) ? fmin(low, s->low) : low;
			high = is_drawn(s) ? fmax(high, s->high) : high;
		}
	}
	if (first == PLOT_RATIO || low > high) { /* the line at 1 is part of the picture */
		low = fmin(low, 1);
		high = fmax(high, 1);
	}
	struct values v = {.marks = all_marks, .top = top};
	while (high / low > v.marks->range)
		v.marks++;
	v.first = (int)floor(log10(low)) * v.marks->n;
	while (mark(v.marks, v.first + 1) <= low)
		v.first++;
	v.last = v.first + 1;
	while (mark(v.marks, v.last) < high)
		v.last++;
	return v;
}

static double y_of(const struct values *v, double value)
{
	const double low = log(mark(v->marks, v->first)), high = log(mark(v->marks, v->last));
	return v->top + PLOT_HEIGHT * (high - log(value)) / (high - low);
}

static void draw_values(FILE *f, const struct values *v)
{
	char text[32];
	for (int i = v->first; i <= v->last; i++) {
		const double value = mark(v->marks, i), y = y_of(v, value);
		fprintf(f, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y, RIGHT);
		snprintf(text, sizeof(text), "%.4g", value);
		text_at(f, "class=\"mark\" text-anchor=\"end\"", LEFT - 8, y + 4, text);
	}
}

/* ---- A series ---- */

/* The baseline's points are squares: colours alone do not tell the two from each other. */
static void draw_symbol(FILE *f, unsigned series, double x, double y, bool ends)
{
	const char *end = ends ? "/>\n" : ">";
	if (series == PLOT_BASELINE)
		fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"%s", x - 3.5,
			y - 3.5, end);
	else
		fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"%s", x, y, end);
}

static void draw_point(FILE *f, unsigned series, const struct plot_point *point, double x,
		       const struct values *v)
{
	const struct spread *s = &point->of[series];
	const double y = y_of(v, s->value);
	fprintf(f, "<path class=\"line\" d=\"M%.1f %.1fV%.1f\"/>\n<g class=\"point\">", x,
		y_of(v, s->low), y_of(v, s->high));
	draw_symbol(f, series, x, y, false);
	fprintf(f, "<title>%" PRIu64 " bytes: %.4g (%.4g to %.4g)</title>%s</g>\n", point->bytes,
		s->value, s->low, s->high, series == PLOT_BASELINE ? "</rect>" : "</circle>");
}

static void draw_series(FILE *f, const struct plot *p, unsigned series, const char *class,
			const struct sizes *sizes, const struct values *v)
{
	bool begun = false;
	fprintf(f, "<g class=\"%s\">\n", class);
	for (size_t i = 0; i < p->n; i++) {
		const struct spread *s = &p->points[i].of[series];
		if (!is_drawn(s))
			continue;
		fprintf(f, "%s%.1f %.1f", begun ? "L" : "<path class=\"line\" d=\"M",
			x_of(sizes, log2_of(p->points[i].bytes)), y_of(v, s->value));
		begun = true;
	}
	if (begun)
		fputs("\"/>\n", f);
	for (size_t i = 0; i < p->n; i++) {
		const struct plot_point *point = &p->points[i];
		if (is_drawn(&point->of[series]))
			draw_point(f, series, point, x_of(sizes, log2_of(point->bytes)), v);
	}
	fputs("</g>\n", f);
}

/* ---- The panels ---- */

static void draw_ratio(FILE *f, const struct plot *p, const struct sizes *sizes, double top)
{
	const struct values v = values_of(p, PLOT_RATIO, PLOT_RATIO, top + PLOT_TOP);
	char heading[160];
	snprintf(heading, sizeof(heading), "time / %s's time (below 1 the service is faster)",
		 p->baseline);
	text_at(f, "class=\"heading\"", LEFT, top + PLOT_TOP - 14, heading);
	draw_values(f, &v);
	fprintf(f, "<path class=\"one\" d=\"M%d %.1fH%d\"/>\n", LEFT, y_of(&v, 1), RIGHT);
	draw_sizes(f, sizes, v.top + PLOT_HEIGHT);
	draw_series(f, p, PLOT_RATIO, "service ratio", sizes, &v);
}

static void draw_key(FILE *f, unsigned series, const char *class, double x, double y,
		     const char *name)
{
	fprintf(f, "<g class=\"%s\"><g class=\"key\">", class);
	draw_symbol(f, series, x, y - 4, true);
	fputs("</g></g>\n", f);
	text_at(f, "class=\"mark\"", x + 10, y, name);
}

static void draw_bandwidth(FILE *f, const struct plot *p, const struct sizes *sizes, double top)
{
	const struct values v = values_of(p, PLOT_SERVICE, PLOT_BASELINE, top + PLOT_TOP);
	text_at(f, "class=\"heading\"", LEFT, top + PLOT_TOP - 14, "bus bandwidth (GB/s)");
	draw_key(f, PLOT_SERVICE, "service", LEFT + 330, top + PLOT_TOP - 14, "the service");
	if (p->baseline)
		draw_key(f, PLOT_BASELINE, "baseline", LEFT + 450, top + PLOT_TOP - 14,
			 p->baseline);
	draw_values(f, &v);
	draw_sizes(f, sizes, v.top + PLOT_HEIGHT);
	if (p->baseline)
		draw_series(f, p, PLOT_BASELINE, "baseline bandwidth", sizes, &v);
	draw_series(f, p, PLOT_SERVICE, "service bandwidth", sizes, &v);
}

/* It paints its own background, so that it is readable on any page. */
static const char style[] = "<style>\n"
			    "svg { font: 12px system-ui, sans-serif }\n"
			    ".page { fill: #ffffff }\n"
			    "text { fill: #1f2328 }\n"
			    ".title { font-size: 16px; font-weight: 600 }\n"
			    ".heading { font-weight: 600 }\n"
			    ".mark, .note { fill: #59636e }\n"
			    ".grid { stroke: #d8dee4 }\n"
			    ".one { stroke: #59636e; stroke-dasharray: 5 4 }\n"
			    ".line { fill: none; stroke-width: 1.5 }\n"
			    ".service { stroke: #0969da }\n"
			    ".service .point, .service .key { fill: #0969da }\n"
			    ".baseline { stroke: #bc4c00 }\n"
			    ".baseline .point, .baseline .key { fill: #bc4c00 }\n"
			    "@media (prefers-color-scheme: dark) {\n"
			    ".page { fill: #0d1117 }\n"
			    "text { fill: #e6edf3 }\n"
			    ".mark, .note { fill: #9198a1 }\n"
			    ".grid { stroke: #30363d }\n"
			    ".one { stroke: #9198a1 }\n"
			    ".service { stroke: #58a6ff }\n"
			    ".service .point, .service .key { fill: #58a6ff }\n"
			    ".baseline { stroke: #f0883e }\n"
			    ".baseline .point, .baseline .key { fill: #f0883e }\n"
			    "}\n"
			    "</style>\n";

void plot_write(const struct plot *p, FILE *f)
{
	const struct sizes sizes = sizes_of(p);
	double y = 30;
	unsigned notes = 0;
	while (notes < PLOT_NOTES && p->notes[notes])
		notes++;
	const int height = 44 + (int)notes * NOTE_HEIGHT + (p->baseline ? 2 : 1) * PANEL_HEIGHT;
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"%d\" "
		"height=\"%d\" viewBox=\"0 0 %d %d\">\n<title>",
		WIDTH, height, WIDTH, height);
	put_text(f, p->title);
	fputs("</title>\n<desc>", f);
	put_text(f, p->command);
	fprintf(f, "</desc>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", style, WIDTH,
		height);
	text_at(f, "class=\"title\"", 16, y, p->title);
	for (unsigned i = 0; i < notes; i++)
		text_at(f, "class=\"note\"", 16, y += NOTE_HEIGHT, p->notes[i]);
	if (p->baseline) {
		draw_ratio(f, p, &sizes, y);
		y += PANEL_HEIGHT;
	}
	draw_bandwidth(f, p, &sizes, y);
	fputs("</svg>\n", f);
}
