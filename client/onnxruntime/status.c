/* SPDX-License-Identifier: Apache-2.0
 * Errors as ONNX Runtime statuses. ONNX Runtime adds the operator's and the node's name to the
 * sentence. */
#include <stdarg.h>
#include <stdio.h>

#include "ort.h"

#define SENTENCE 1024

OrtStatus *status_new(const OrtApi *ort, enum ort_error code, const char *format, ...)
{
	char text[SENTENCE];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return ort->CreateStatus(code, text);
}

static enum ort_error code_of(ncclsvc_result result)
{
	switch (result) {
	case NCCLSVC_INVALID_ARGUMENT:
	case NCCLSVC_MISMATCH:
		return ORT_ERROR_INVALID_ARGUMENT;
	case NCCLSVC_UNSUPPORTED:
		return ORT_ERROR_NOT_IMPLEMENTED;
	default:
		return ORT_ERROR_FAIL;
	}
}

OrtStatus *status_of(const OrtApi *ort, ncclsvc_result result)
{
	if (!result)
		return NULL;
	return status_new(ort, code_of(result), "%s: %s", ncclsvc_result_name(result),
			  ncclsvc_last_error());
}

OrtStatus *status_first(const OrtApi *ort, OrtStatus *first, OrtStatus *second)
{
	if (!first)
		return second;
	if (second)
		ort->ReleaseStatus(second);
	return first;
}
