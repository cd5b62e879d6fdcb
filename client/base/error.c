/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last error, and the names of the vocabulary. */
#include <stdarg.h>
#include <stdio.h>

#include "build_config.h"
#include "error.h"
#include "proto/names.h"

static _Thread_local char last_error[LOST_TEXT * 2];

ncclsvc_result error_set(ncclsvc_result result, const char *format, ...)
{
	/* The arguments may point into last_error itself. */
	char text[sizeof(last_error)];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(last_error, sizeof(last_error), "%s", text);
	return result;
}

const char *ncclsvc_last_error(void)
{
	return last_error;
}

const char *ncclsvc_version(void)
{
	return NCCLSVC_VERSION_STRING;
}

const char *ncclsvc_result_name(ncclsvc_result result)
{
	return svc_result_name(result);
}

const char *ncclsvc_result_meaning(ncclsvc_result result)
{
	return svc_result_meaning(result);
}

const char *ncclsvc_op_name(unsigned op)
{
	return svc_op_name(op);
}

const char *ncclsvc_type_name(unsigned type)
{
	return svc_type_name(type);
}

const char *ncclsvc_redop_name(unsigned redop)
{
	return svc_redop_name(redop);
}

const char *ncclsvc_state_name(unsigned state)
{
	return svc_state_name(state);
}

const char *ncclsvc_epoch_state_name(unsigned state)
{
	return svc_epoch_state_name(state);
}

const char *ncclsvc_epoch_cause_name(unsigned cause)
{
	return svc_epoch_cause_name(cause);
}

const char *ncclsvc_field_name(unsigned field)
{
	return svc_field_name(field);
}

size_t ncclsvc_type_size(unsigned type)
{
	return svc_type_size(type);
}

char *ncclsvc_status_sentence(const ncclsvc_status *status, char *buf, size_t size)
{
	return svc_status_sentence(status, buf, size);
}
