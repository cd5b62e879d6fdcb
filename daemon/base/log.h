/* SPDX-License-Identifier: Apache-2.0
 * Messages to the journal or to stderr. Thread-safe. A call site that repeats itself is limited to
 * LOG_BURST messages in LOG_WINDOW_NS (debug messages are not); how many were left out is said once
 * the window has passed. */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
/* AUTO: the journal if stderr leads there, else stderr. */
enum log_target { LOG_TARGET_AUTO, LOG_TARGET_JOURNAL, LOG_TARGET_STDERR };

#define LOG_BURST 20

/* One per call site, static; log.c owns its contents. */
struct log_site {
	const char *file;
	int line;
	unsigned sent;
	uint64_t suppressed;
	uint64_t window_ns;
	struct log_site *next;
};

/* Before it is called, messages go to stderr at level info. Returns 0, or -1 if the target is not
 * available in this build (then stderr is used). */
int log_init(enum log_target target, enum log_level level);
void log_set_level(enum log_level level);
/* Each line begins with the node, where there are several, and in a worker with its GPU. To be
 * called in this order. */
void log_set_node(unsigned node);
void log_set_gpu(unsigned gpu);
bool log_enabled(enum log_level level);

/* Reports what is still suppressed. To be called now and then, and before exit. */
void log_flush(void);

void log_write(struct log_site *site, enum log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* A message that is looked for by machines: the journal keeps its id (sd_journal_send(3)) and
 * fields, each "NAME=value". Nothing is left out here: its caller bounds how many there are. */
#define LOG_FIELDS	16
#define LOG_FIELD_BYTES 112
struct log_event {
	const char *id; /* 32 hex digits, as in scripts/systemd/ncclsvc.catalog; static */
	unsigned n;
	char fields[LOG_FIELDS][LOG_FIELD_BYTES];
};
void log_field(struct log_event *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_event(enum log_level level, const struct log_event *e, const char *text);

/* The message needs no newline. errno is kept, and %m works. */
#define log_at(level, ...)                                                                         \
	do {                                                                                       \
		static struct log_site log_site_ = {.file = __FILE__, .line = __LINE__};           \
		if (log_enabled(level))                                                            \
			log_write(&log_site_, level, __VA_ARGS__);                                 \
	} while (0)
#define log_error(...)	 log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)	 log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	 log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
