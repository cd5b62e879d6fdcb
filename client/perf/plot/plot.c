/* SPDX-License-Identifier: Apache-2.0
 * A panel is a heading, two axes and one or two series. */
#include "plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "axis.h"
#include "svg.h"

#define WIDTH	     (AXIS_RIGHT + 24)
#define NOTE_HEIGHT  18
#define PANEL_HEIGHT 270 /* including its heading, and the sizes below */
#define PLOT_TOP     34	 /* from the panel's top */

void plot_add(struct plot *p, const struct plot_point *point)
{
	/* The capacity is n rounded up to a power of two. */
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

/* ---- A series ---- */

static bool is_drawn(const struct spread *s)
{
	return isfinite(s->value) && s->low > 0 && isfinite(s->high);
}

static struct size_axis sizes_of(const struct plot *p)
{
	uint64_t low = p->n ? p->points[0].bytes : 1, high = low;
	for (size_t i = 0; i < p->n; i++) {
		low = p->points[i].bytes < low ? p->points[i].bytes : low;
		high = p->points[i].bytes > high ? p->points[i].bytes : high;
	}
	return size_axis_over(low, high);
}

/* The axis for the values of some series. */
static struct value_axis values_of(const struct plot *p, unsigned first, unsigned last, double top)
{
	double low = INFINITY, high = -INFINITY;
	for (size_t i = 0; i < p->n; i++) {
		for (unsigned series = first; series <= last; series++) {
			const struct spread *s = &p->points[i].of[series];
			low = is_drawn(s) ? fmin(low, s->low) : low;
			high = is_drawn(s) ? fmax(high, s->high) : high;
		}
	}
	if (first == PLOT_RATIO || low > high) { /* always include the line at 1 */
		low = fmin(low, 1);
		high = fmax(high, 1);
	}
	return value_axis_over(low, high, top);
}

/* The baseline's points are squares, because colours alone do not distinguish the two. */
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
		       const struct value_axis *v)
{
	const struct spread *s = &point->of[series];
	const double y = value_axis_y(v, s->value);
	fprintf(f, "<path class=\"line\" d=\"M%.1f %.1fV%.1f\"/>\n<g class=\"point\">", x,
		value_axis_y(v, s->low), value_axis_y(v, s->high));
	draw_symbol(f, series, x, y, false);
	fprintf(f, "<title>%" PRIu64 " bytes: %.4g (%.4g to %.4g)</title>%s</g>\n", point->bytes,
		s->value, s->low, s->high, series == PLOT_BASELINE ? "</rect>" : "</circle>");
}

static void draw_series(FILE *f, const struct plot *p, unsigned series, const char *class,
			const struct size_axis *sizes, const struct value_axis *v)
{
	bool begun = false;
	fprintf(f, "<g class=\"%s\">\n", class);
	for (size_t i = 0; i < p->n; i++) {
		const struct spread *s = &p->points[i].of[series];
		if (!is_drawn(s))
			continue;
		fprintf(f, "%s%.1f %.1f", begun ? "L" : "<path class=\"line\" d=\"M",
			size_axis_x(sizes, p->points[i].bytes), value_axis_y(v, s->value));
		begun = true;
	}
	if (begun)
		fputs("\"/>\n", f);
	for (size_t i = 0; i < p->n; i++) {
		const struct plot_point *point = &p->points[i];
		if (is_drawn(&point->of[series]))
			draw_point(f, series, point, size_axis_x(sizes, point->bytes), v);
	}
	fputs("</g>\n", f);
}

/* ---- The panels ---- */

static void draw_ratio(FILE *f, const struct plot *p, const struct size_axis *sizes, double top)
{
	const struct value_axis v = values_of(p, PLOT_RATIO, PLOT_RATIO, top + PLOT_TOP);
	char heading[160];
	snprintf(heading, sizeof(heading), "time / %s's time (below 1 the service is faster)",
		 p->baseline);
	svg_text(f, "class=\"heading\"", AXIS_LEFT, top + PLOT_TOP - 14, heading);
	value_axis_draw(&v, f);
	fprintf(f, "<path class=\"one\" d=\"M%d %.1fH%d\"/>\n", AXIS_LEFT, value_axis_y(&v, 1),
		AXIS_RIGHT);
	size_axis_draw(sizes, f, v.top + AXIS_HEIGHT);
	draw_series(f, p, PLOT_RATIO, "service ratio", sizes, &v);
}

static void draw_key(FILE *f, unsigned series, const char *class, double x, double y,
		     const char *name)
{
	fprintf(f, "<g class=\"%s\"><g class=\"key\">", class);
	draw_symbol(f, series, x, y - 4, true);
	fputs("</g></g>\n", f);
	svg_text(f, "class=\"mark\"", x + 10, y, name);
}

static void draw_bandwidth(FILE *f, const struct plot *p, const struct size_axis *sizes, double top)
{
	const struct value_axis v = values_of(p, PLOT_SERVICE, PLOT_BASELINE, top + PLOT_TOP);
	svg_text(f, "class=\"heading\"", AXIS_LEFT, top + PLOT_TOP - 14, "bus bandwidth (GB/s)");
	draw_key(f, PLOT_SERVICE, "service", AXIS_LEFT + 330, top + PLOT_TOP - 14, "the service");
	if (p->baseline)
		draw_key(f, PLOT_BASELINE, "baseline", AXIS_LEFT + 450, top + PLOT_TOP - 14,
			 p->baseline);
	value_axis_draw(&v, f);
	size_axis_draw(sizes, f, v.top + AXIS_HEIGHT);
	if (p->baseline)
		draw_series(f, p, PLOT_BASELINE, "baseline bandwidth", sizes, &v);
	draw_series(f, p, PLOT_SERVICE, "service bandwidth", sizes, &v);
}

/* The style paints a background, so that the plot is readable on any page. */
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
	const struct size_axis sizes = sizes_of(p);
	double y = 30;
	unsigned notes = 0;
	while (notes < PLOT_NOTES && p->notes[notes])
		notes++;
	const int height = 44 + (int)notes * NOTE_HEIGHT + (p->baseline ? 2 : 1) * PANEL_HEIGHT;
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"%d\" "
		"height=\"%d\" viewBox=\"0 0 %d %d\">\n<title>",
		WIDTH, height, WIDTH, height);
	svg_put(f, p->title);
	fputs("</title>\n<desc>", f);
	svg_put(f, p->command);
	fprintf(f, "</desc>\n%s<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", style, WIDTH,
		height);
	svg_text(f, "class=\"title\"", 16, y, p->title);
	for (unsigned i = 0; i < notes; i++)
		svg_text(f, "class=\"note\"", 16, y += NOTE_HEIGHT, p->notes[i]);
	if (p->baseline) {
		draw_ratio(f, p, &sizes, y);
		y += PANEL_HEIGHT;
	}
	draw_bandwidth(f, p, &sizes, y);
	fputs("</svg>\n", f);
}
