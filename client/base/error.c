/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last error, and the names of the public constants. */
#include <stdarg.h>
#include <stdio.h>

#include "build_config.h"
#include "error.h"
#include "proto/names.h"
#include "proto/printable.h"

static _Thread_local struct error last = {.status = {.rank_a = -1, .rank_b = -1}};

static void store(const ncclsvc_status *status, const char *format, va_list args)
{
	/* The arguments may point into last.text itself. */
	char text[sizeof(last.text)];
	vsnprintf(text, sizeof(text), format, args);
	snprintf(last.text, sizeof(last.text), "%s", text);
	last.status = *status;
}

static ncclsvc_status nothing_but(ncclsvc_result result)
{
	return (ncclsvc_status){.result = result, .rank_a = -1, .rank_b = -1};
}

ncclsvc_result error_set(ncclsvc_result result, const char *format, ...)
{
	const ncclsvc_status status = nothing_but(result);
	va_list args;
	va_start(args, format);
	store(&status, format, args);
	va_end(args);
	return result;
}

ncclsvc_result error_set_status(const ncclsvc_status *status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	store(status, format, args);
	va_end(args);
	return (ncclsvc_result)status->result;
}

void error_keep(struct error *e)
{
	*e = last;
}

ncclsvc_result error_again(const struct error *e)
{
	last = *e;
	return (ncclsvc_result)e->status.result;
}

void error_clear(void)
{
	last.text[0] = '\0';
	last.status = nothing_but(NCCLSVC_OK);
}

const char *ncclsvc_last_error(void)
{
	return last.text;
}

ncclsvc_result ncclsvc_last_status(ncclsvc_status *status)
{
	if (!status)
		return error_argument("ncclsvc_last_status: status is NULL");
	*status = last.status;
	return NCCLSVC_OK;
}

ncclsvc_result ncclsvc_set_error(ncclsvc_result result, const char *format, ...)
{
	const bool failure = result < 0 && svc_result_known(result);
	const ncclsvc_status status = nothing_but(failure ? result : NCCLSVC_INVALID_ARGUMENT);
	va_list args;
	va_start(args, format);
	store(&status, format ? format : "", args);
	va_end(args);
	svc_make_printable(last.text, sizeof(last.text));
	return (ncclsvc_result)status.result;
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

const char *ncclsvc_ending_name(unsigned ending)
{
	return svc_ending_name(ending);
}

const char *ncclsvc_failure_name(unsigned failure)
{
	return svc_failure_name(failure);
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
