/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include <stdlib.h>
#include <string.h>

#include "proto/printable.h"

void svg_put(FILE *f, const char *text)
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

void svg_text(FILE *f, const char *attributes, double x, double y, const char *text)
{
	fprintf(f, "<text %s x=\"%.1f\" y=\"%.1f\">", attributes, x, y);
	svg_put(f, text);
	fputs("</text>\n", f);
}
