/* SPDX-License-Identifier: Apache-2.0 */
#include "option_values.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ncclsvc.h"

bool same_name(const char *a, const char *b)
{
	for (;; a++, b++) {
		while (*a == '-' || *a == '_')
			a++;
		while (*b == '-' || *b == '_')
			b++;
		if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
			return false;
		if (!*a)
			return true;
	}
}

bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
	char *end;
	errno = 0;
	if (!isdigit((unsigned char)*text))
		return false;
	*value = strtoull(text, &end, 10);
	return !errno && !*end && *value >= min && *value <= max;
}

bool parse_size(const char *text, uint64_t *value)
{
	static const char units[] = "KMGT";
	char *end;
	if (!isdigit((unsigned char)*text))
		return false;
	double number = strtod(text, &end);
	if (*end) {
		const char *unit = strchr(units, toupper((unsigned char)*end));
		if (!unit)
			return false;
		number = ldexp(number, 10 * (int)(unit - units + 1));
		end++;
		if (*end == 'i' || *end == 'I')
			end++;
		if (*end == 'B' || *end == 'b')
			end++;
	}
	if (*end || !(number < ldexp(1, 46)))
		return false;
	*value = (uint64_t)number;
	return true;
}

bool parse_type(const char *text, uint32_t *set)
{
	static const struct {
		const char *name;
		unsigned type;
	} aliases[] = {
		{"half", NCCLSVC_FLOAT16},  {"fp16", NCCLSVC_FLOAT16}, {"bf16", NCCLSVC_BFLOAT16},
		{"float", NCCLSVC_FLOAT32}, {"fp32", NCCLSVC_FLOAT32}, {"double", NCCLSVC_FLOAT64},
		{"fp64", NCCLSVC_FLOAT64},  {"char", NCCLSVC_INT8},    {"int", NCCLSVC_INT32}};
	bool all = same_name(text, "all");
	*set = 0;
	for (unsigned type = 0; type < 32; type++) {
		if (ncclsvc_type_size(type) && (all || same_name(text, ncclsvc_type_name(type))))
			*set |= 1u << type;
	}
	for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++) {
		if (same_name(text, aliases[i].name))
			*set |= 1u << aliases[i].type;
	}
	return *set != 0;
}

bool parse_redop(const char *text, uint32_t *set)
{
	bool all = same_name(text, "all");
	*set = 0;
	for (unsigned redop = NCCLSVC_SUM; redop <= NCCLSVC_AVG; redop++) {
		if (all || same_name(text, ncclsvc_redop_name(redop)))
			*set |= 1u << redop;
	}
	return *set != 0;
}

bool parse_seconds(const char *text, double max, double *value)
{
	char *end;
	*value = strtod(text, &end);
	return isdigit((unsigned char)*text) && !*end && *value > 0 && *value <= max;
}

bool parse_choice(const char *text, const char *choices, unsigned *which)
{
	char word[32];
	for (*which = 0; *choices; ++*which) {
		size_t n = strcspn(choices, " ");
		snprintf(word, sizeof(word), "%.*s", (int)n, choices);
		if (same_name(text, word))
			return true;
		choices += n + (choices[n] == ' ');
	}
	return false;
}

const char *choice_name(const char *choices, unsigned which)
{
	static char word[32];
	for (; which > 0; which--)
		choices = strchr(choices, ' ') + 1;
	snprintf(word, sizeof(word), "%.*s", (int)strcspn(choices, " "), choices);
	return word;
}

bool parse_list(const char *text, int max, int *list, unsigned size, unsigned *n)
{
	for (*n = 0; *n < size; ++*n, text++) {
		char *end;
		if (!isdigit((unsigned char)*text))
			return false;
		errno = 0;
		long value = strtol(text, &end, 10);
		if (errno || value > max)
			return false;
		list[*n] = (int)value;
		if (!*end) {
			++*n;
			return true;
		}
		if (*end != ',')
			return false;
		text = end;
	}
	return false;
}
