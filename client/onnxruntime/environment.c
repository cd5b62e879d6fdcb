/* SPDX-License-Identifier: Apache-2.0
 * The environment's settings for the world, because users of ONNX Runtime have no options to set.
 */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ort.h"

#define TIMEOUT_S 600
#define WORLD	  "NCCLSVC_ORT_WORLD"
#define JOB	  "NCCLSVC_ORT_JOB"

/* The variables for numbers of ranks, the world's first, and the options they set, by the name in
 * the library's errors. */
static const struct {
	const char *option, *variable;
	size_t offset;
} sizes[] = {
	{"world", WORLD, offsetof(ncclsvc_world_options, world)},
	{"data", "NCCLSVC_ORT_DATA", offsetof(ncclsvc_world_options, data)},
	{"horizontal", "NCCLSVC_ORT_HORIZONTAL", offsetof(ncclsvc_world_options, horizontal)},
	{"pipeline", "NCCLSVC_ORT_PIPELINE", offsetof(ncclsvc_world_options, pipeline)},
	{"local", "NCCLSVC_ORT_LOCAL", offsetof(ncclsvc_world_options, local)},
};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

ncclsvc_result environment_timeout(int *timeout_ms)
{
	const char *text = getenv("NCCLSVC_ORT_TIMEOUT");
	char *end;
	const long s = text ? strtol(text, &end, 10) : TIMEOUT_S;
	if (text && (end == text || *end || s < 0 || s > INT_MAX / 1000))
		return ncclsvc_set_error(
			NCCLSVC_INVALID_ARGUMENT,
			"NCCLSVC_ORT_TIMEOUT is '%s': use a number of seconds, or 0 for none",
			text);
	*timeout_ms = s ? (int)s * 1000 : NCCLSVC_NO_TIMEOUT;
	return NCCLSVC_OK;
}

/* 0: the variable is not set. */
static ncclsvc_result take_size(const char *variable, int *size)
{
	const char *text = getenv(variable);
	char *end;
	const long n = text ? strtol(text, &end, 10) : 0;
	if (text && (end == text || *end || n < 1 || n > INT_MAX))
		return ncclsvc_set_error(NCCLSVC_INVALID_ARGUMENT,
					 "%s is '%s': use a number of ranks", variable, text);
	*size = (int)n;
	return NCCLSVC_OK;
}

ncclsvc_result environment_world(ncclsvc_world_options *choice)
{
	const char *world = getenv(WORLD);
	const bool launcher = world && !strcmp(world, "launcher");
	ncclsvc_result r = NCCLSVC_OK;
	choice->job = getenv(JOB);
	for (size_t i = launcher ? 1 : 0; !r && i < SIZES; i++)
		r = take_size(sizes[i].variable, (int *)((char *)choice + sizes[i].offset));
	if (launcher)
		choice->world = NCCLSVC_WORLD_LAUNCHER;
	return r;
}

/* ---- Errors ---- */

static bool has_word(const char *sentence, const char *word)
{
	const size_t n = strlen(word);
	for (const char *at = sentence; (at = strstr(at, word)); at += n)
		if ((at == sentence || !isalpha((unsigned char)at[-1])) &&
		    !isalpha((unsigned char)at[n]))
			return true;
	return false;
}

static void add_hint(const char *sentence, const char *option, const char *variable, char *hints)
{
	const size_t n = strlen(hints);
	if (has_word(sentence, option))
		snprintf(hints + n, ERROR_BYTES - n, "%s%s sets %s", n ? ", " : "", variable,
			 option);
}

ncclsvc_result environment_explain(ncclsvc_result result, const char *sentence)
{
	char hints[ERROR_BYTES] = "";
	if (result != NCCLSVC_INVALID_ARGUMENT && result != NCCLSVC_MISMATCH)
		return ncclsvc_set_error(result, "%s", sentence);
	for (size_t i = 0; i < SIZES; i++)
		add_hint(sentence, sizes[i].option, sizes[i].variable, hints);
	add_hint(sentence, "job", JOB, hints);
	return ncclsvc_set_error(result, hints[0] ? "%s (%s)" : "%s", sentence, hints);
}
