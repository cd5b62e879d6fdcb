/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#endif

#include "proto/printable.h"
#include "timings.h"

#define TEXT_BYTES 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int threshold = LOG_LEVEL_INFO;
static bool to_journal;		     /* under lock */
static uint64_t lost;		     /* under lock: messages for which stderr had no room */
static struct log_site *suppressing; /* under lock: sites with suppressed messages */
static char prefix[32];		     /* under lock: "node 2: gpu0: ", or empty */

static const char *const words[] = {"error", "warning", "info", "debug"};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#ifdef HAVE_SYSTEMD
/* systemd names the device and inode of the stream it connected to the journal. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       !fstat(STDERR_FILENO, &st) && st.st_dev == device && st.st_ino == inode;
}

static struct iovec field_of(const char *text)
{
	return (struct iovec){(void *)(uintptr_t)text, strlen(text)};
}

static bool send_to_journal(enum log_level level, const struct log_event *e, const char *text)
{
	static const int priorities[] = {3, 4, 6, 7};
	char message[sizeof(prefix) + TEXT_BYTES + 16], priority[16], id[64];
	struct iovec fields[LOG_FIELDS + 4];
	int n = 0;

	snprintf(message, sizeof(message), "MESSAGE=%s", text);
	snprintf(priority, sizeof(priority), "PRIORITY=%d", priorities[level]);
	fields[n++] = field_of(message);
	fields[n++] = field_of(priority);
	fields[n++] = field_of("SYSLOG_IDENTIFIER=ncclsvcd");
	if (e) {
		snprintf(id, sizeof(id), "MESSAGE_ID=%s", e->id);
		fields[n++] = field_of(id);
	}
	for (unsigned i = 0; e && i < e->n; i++)
		fields[n++] = field_of(e->fields[i]);
	return sd_journal_sendv(fields, n) == 0;
}
#else
static bool stderr_is_journal(void)
{
	return false;
}

static bool send_to_journal(enum log_level level, const struct log_event *e, const char *text)
{
	(void)level;
	(void)e;
	(void)text;
	return false;
}
#endif

/* A pipe whose reader has stopped must not stop the daemon. */
static bool stderr_has_room(void)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&p, 1, 0) != 0; /* an error is for the write to meet */
}

static void send_to_stderr(enum log_level level, const char *text)
{
	char line[sizeof(prefix) + TEXT_BYTES + 64];
	struct timespec t;
	struct tm utc;
	size_t n;
	int length;

	if (!stderr_has_room()) {
		lost++;
		return;
	}

	clock_gettime(CLOCK_REALTIME, &t);
	gmtime_r(&t.tv_sec, &utc);
	n = strftime(line, sizeof(line), "%FT%T", &utc);
	length = snprintf(line + n, sizeof(line) - n, ".%03ldZ %s: %s\n", t.tv_nsec / 1000000,
			  words[level], text);
	/* One write keeps lines of several processes apart. There is nobody to tell if it fails. */
	if (length > 0 && write(STDERR_FILENO, line, n + (size_t)length) < 0)
		return;
}

static void emit(enum log_level level, const struct log_event *e, const char *message)
{
	char note[sizeof(prefix) + 64], text[sizeof(prefix) + TEXT_BYTES];

	snprintf(text, sizeof(text), "%s%s", prefix, message);
	if (to_journal && send_to_journal(level, e, text))
		return;
	if (lost && stderr_has_room()) {
		snprintf(note, sizeof(note), "%s%" PRIu64 " messages were lost: nobody read them",
			 prefix, lost);
		lost = 0;
		send_to_stderr(LOG_LEVEL_WARNING, note);
	}
	send_to_stderr(level, text);
}

static void report(const struct log_site *site)
{
	const char *file = strrchr(site->file, '/');
	char text[TEXT_BYTES];

	snprintf(text, sizeof(text), "%" PRIu64 " more messages from %s:%d were suppressed",
		 site->suppressed, file ? file + 1 : site->file, site->line);
	emit(LOG_LEVEL_WARNING, NULL, text);
}

/* Reports sites whose window has passed, or all of them. */
static void sweep(uint64_t now, bool all)
{
	struct log_site **at = &suppressing;

	while (*at) {
		struct log_site *site = *at;

		if (!all && now < site->window_ns + LOG_WINDOW_NS) {
			at = &site->next;
			continue;
		}
		report(site);
		site->suppressed = 0;
		*at = site->next;
	}
}

/* Counts one message; false: it is one too many. */
static bool allowed(struct log_site *site, uint64_t now)
{
	/* Another thread may have begun the window with a later time. */
	if (now >= site->window_ns + LOG_WINDOW_NS) {
		site->window_ns = now;
		site->sent = 0;
	}
	if (site->sent < LOG_BURST) {
		site->sent++;
		return true;
	}
	if (!site->suppressed++) {
		site->next = suppressing;
		suppressing = site;
	}
	return false;
}

int log_init(enum log_target target, enum log_level level)
{
	int rc = 0;

	log_set_level(level);
	pthread_mutex_lock(&lock);
#ifdef HAVE_SYSTEMD
	to_journal =
		target == LOG_TARGET_JOURNAL || (target == LOG_TARGET_AUTO && stderr_is_journal());
#else
	to_journal = target == LOG_TARGET_AUTO && stderr_is_journal();
	if (target == LOG_TARGET_JOURNAL)
		rc = -1;
#endif
	pthread_mutex_unlock(&lock);
	return rc;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void log_set_node(unsigned node)
{
	pthread_mutex_lock(&lock);
	snprintf(prefix, sizeof(prefix), "node %u: ", node);
	pthread_mutex_unlock(&lock);
}

void log_set_gpu(unsigned gpu)
{
	pthread_mutex_lock(&lock);
	const size_t n = strlen(prefix);
	snprintf(prefix + n, sizeof(prefix) - n, "gpu%u: ", gpu);
	pthread_mutex_unlock(&lock);
}

bool log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

void log_flush(void)
{
	int saved = errno;

	pthread_mutex_lock(&lock);
	sweep(now_ns(), true);
	pthread_mutex_unlock(&lock);
	errno = saved;
}

void log_write(struct log_site *site, enum log_level level, const char *format, ...)
{
	char text[TEXT_BYTES];
	int saved = errno;
	va_list args;
	uint64_t now = now_ns();

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	/* The text may hold a driver's, a worker's or another node's message, or a file's path:
	 * it must stay one line. */
	svc_make_printable(text, sizeof(text));

	pthread_mutex_lock(&lock);
	sweep(now, false);
	if (level == LOG_LEVEL_DEBUG || allowed(site, now))
		emit(level, NULL, text);
	pthread_mutex_unlock(&lock);
	errno = saved;
}

void log_field(struct log_event *e, const char *format, ...)
{
	va_list args;

	if (e->n == LOG_FIELDS)
		return;
	va_start(args, format);
	vsnprintf(e->fields[e->n], LOG_FIELD_BYTES, format, args);
	va_end(args);
	svc_make_printable(e->fields[e->n++], LOG_FIELD_BYTES);
}

void log_event(enum log_level level, const struct log_event *e, const char *text)
{
	char line[TEXT_BYTES];
	int saved = errno;

	if (!log_enabled(level))
		return;
	snprintf(line, sizeof(line), "%s", text);
	svc_make_printable(line, sizeof(line));
	pthread_mutex_lock(&lock);
	sweep(now_ns(), false);
	emit(level, e, line);
	pthread_mutex_unlock(&lock);
	errno = saved;
}
