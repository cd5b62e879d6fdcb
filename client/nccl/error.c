/* SPDX-License-Identifier: Apache-2.0
 * Results, error sentences, and the lines of NCCL_DEBUG. */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "build_config.h"
#include "dropin.h"

#define SENTENCE sizeof(((struct thread_errors *)0)->sentence)

enum level { LEVEL_NONE, LEVEL_VERSION, LEVEL_WARN, LEVEL_INFO };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[SENTENCE]; /* per process, as in NCCL: another thread may query it */
FREE_IN_CHILDREN(lock)

/* ---- Of threads ---- */

static pthread_key_t key;
static _Thread_local struct thread_errors *mine;

static void thread_free(void *arg)
{
	free(arg);
	mine = NULL;
}

static void make_key(void)
{
	pthread_key_create(&key, thread_free);
}

struct thread_errors *thread_errors(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static struct thread_errors shared; /* a fallback when out of memory */
	if (mine)
		return mine;
	pthread_once(&once, make_key);
	struct thread_errors *e = calloc(1, sizeof(*e));
	if (!e)
		return &shared;
	pthread_setspecific(key, e);
	return mine = e;
}

/* ---- Lines ---- */

static enum level level(void)
{
	static const char *const names[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};
	static const enum level levels[] = {LEVEL_VERSION, LEVEL_WARN, LEVEL_INFO, LEVEL_INFO,
					    LEVEL_INFO};
	static atomic_int known = -1;
	int is = known;
	if (is >= 0)
		return (enum level)is;
	const char *text = getenv("NCCL_DEBUG");
	is = LEVEL_NONE;
	for (size_t i = 0; text && i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcasecmp(text, names[i]))
			is = levels[i];
	known = is;
	return (enum level)is;
}

/* NCCL_DEBUG_FILE with %h (host), %p (pid) and %% replaced, as in NCCL. False: too long. */
static bool debug_path(const char *format, char path[PATH_MAX])
{
	size_t n = 0;
	char host[65] = "?";
	gethostname(host, sizeof(host) - 1);
	for (const char *c = format; *c; c++) {
		char part[sizeof(host)] = {*c};
		if (*c == '%' && c[1] == 'h')
			snprintf(part, sizeof(part), "%s", host);
		else if (*c == '%' && c[1] == 'p')
			snprintf(part, sizeof(part), "%d", getpid());
		if (*c == '%' && (c[1] == 'h' || c[1] == 'p' || c[1] == '%'))
			c++;
		const size_t length = strlen(part);
		if (n + length >= PATH_MAX)
			return false;
		memcpy(path + n, part, length);
		n += length;
	}
	path[n] = 0;
	return true;
}

static int debug_file;

static void debug_file_open(void)
{
	char path[PATH_MAX];
	const char *format = getenv("NCCL_DEBUG_FILE");
	debug_file = STDERR_FILENO;
	if (!format || level() <= LEVEL_VERSION || !debug_path(format, path))
		return;
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
	if (fd >= 0)
		debug_file = fd;
}

/* One write per line, so that lines of several processes do not mix. */
static void print(const char *kind, const char *text)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	char line[SENTENCE + 256], host[65] = "?";
	pthread_once(&once, debug_file_open);
	gethostname(host, sizeof(host) - 1);
	int n = snprintf(line, sizeof(line), "%s:%d:%d NCCL %s %s\n", host, getpid(), gettid(),
			 kind, text);
	if (n >= (int)sizeof(line)) {
		n = (int)sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	if (n > 0 && write(debug_file, line, (size_t)n) < 0)
		return; /* there is nowhere to report it */
}

static __attribute__((format(printf, 3, 0))) void print_at(enum level least, const char *kind,
							   const char *format, va_list args)
{
	char text[SENTENCE];
	if (level() < least)
		return;
	vsnprintf(text, sizeof(text), format, args);
	print(kind, text);
}

void inform(const char *format, ...)
{
	static atomic_bool introduced;
	char text[SENTENCE];
	va_list args;
	if (level() < LEVEL_VERSION)
		return;
	if (!atomic_exchange(&introduced, true)) {
		const int found = version_of_daemon(), version = found ? found : NCCL_ABI_VERSION;
		snprintf(text, sizeof(text), "version %d.%d.%d (ncclsvc %s)", version / 10000,
			 version % 10000 / 100, version % 100, NCCLSVC_VERSION_STRING);
		print("INFO", text);
	}
	va_start(args, format);
	print_at(LEVEL_INFO, "INFO", format, args);
	va_end(args);
}

void warn(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	print_at(LEVEL_WARN, "WARN", format, args);
	va_end(args);
}

/* ---- Sentences ---- */

static void keep_for_group(ncclResult_t result, const char *text)
{
	struct thread_errors *e = thread_errors();
	if (!e->group_depth || e->group_failed || !result || result == ncclInProgress)
		return;
	e->group_failed = result;
	snprintf(e->group_text, sizeof(e->group_text), "%s", text);
}

static ncclResult_t keep(ncclResult_t result, const char *text)
{
	pthread_mutex_lock(&lock);
	snprintf(last, sizeof(last), "%s", text);
	pthread_mutex_unlock(&lock);
	if (level() >= LEVEL_WARN)
		print("WARN", text);
	keep_for_group(result, text);
	return result;
}

ncclResult_t fail(ncclResult_t result, const char *format, ...)
{
	char text[SENTENCE];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return keep(result, text);
}

ncclResult_t result_of(ncclsvc_result result)
{
	switch (result) {
	case NCCLSVC_OK:
		return ncclSuccess;
	case NCCLSVC_IN_PROGRESS:
		return ncclInProgress;
	case NCCLSVC_INVALID_ARGUMENT:
	case NCCLSVC_NOT_FOUND:
		return ncclInvalidArgument;
	case NCCLSVC_MISMATCH:
	case NCCLSVC_RANK_TAKEN:
	case NCCLSVC_UNSUPPORTED:
	case NCCLSVC_BUSY:
		return ncclInvalidUsage;
	case NCCLSVC_PEER_GONE:
	case NCCLSVC_TIMEOUT:
	case NCCLSVC_CANCELLED:
	case NCCLSVC_STALE_EPOCH:
	case NCCLSVC_WORKER_LOST:
		return ncclRemoteError;
	case NCCLSVC_NCCL_ERROR:
		return ncclInternalError;
	default:
		return ncclSystemError;
	}
}

ncclResult_t fail_service(ncclsvc_result result)
{
	return fail(result_of(result), "%s: %s", ncclsvc_result_name(result), ncclsvc_last_error());
}

const char *last_sentence(void)
{
	struct thread_errors *e = thread_errors();
	pthread_mutex_lock(&lock);
	memcpy(e->sentence, last, sizeof(e->sentence));
	pthread_mutex_unlock(&lock);
	return e->sentence;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const texts[] = {
		"no error",
		"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
		"unhandled system error (run with NCCL_DEBUG=INFO for details)",
		"internal error - please report this issue to the NCCL developers",
		"invalid argument (run with NCCL_DEBUG=WARN for details)",
		"invalid usage (run with NCCL_DEBUG=WARN for details)",
		"remote process exited or there was a network error",
		"NCCL operation in progress",
		"timeout",
	};
	return result >= 0 && result <= ncclTimeout ? texts[result] : "unknown result code";
}
NCCL_ALIAS(ncclGetErrorString);

void ncclResetDebugInit(void)
{
	/* NCCL_DEBUG is read only once. NCCL has deprecated this function. */
}
NCCL_ALIAS(ncclResetDebugInit);

void ncclResetDebugInitInternal(void)
{
}
NCCL_ALIAS(ncclResetDebugInitInternal);
