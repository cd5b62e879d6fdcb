/* SPDX-License-Identifier: Apache-2.0
 * The file of failures: a header, then FAILURES_MAX places. One that changes is written in libuv's
 * thread pool, one at a time, so that a slow disk never holds the supervisor. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/loop.h"
#include "failures.h"

#define MAGIC	UINT64_C(0x31305346434e) /* NCFS01 */
#define CHECKED offsetof(struct entry, check)

struct head {
	uint64_t magic;
	uint32_t entry_bytes, entries;
};

struct entry {
	ncclsvc_failure_info info;
	uint64_t check; /* of info: an entry may have been written in part */
};

struct failure_file {
	struct loop *loop;
	int fd;
	bool writes;	       /* req is under way, with `entry` */
	bool failed;	       /* the log has said so */
	struct failure *dirty; /* to be written, in order */
	uv_fs_t req;
	uv_buf_t buffer;
	struct entry entry;
};

/* FNV-1a, by words. */
static uint64_t check_of(const struct entry *e)
{
	uint64_t check = UINT64_C(0xcbf29ce484222325);
	for (size_t at = 0; at + sizeof(uint64_t) <= CHECKED; at += sizeof(uint64_t)) {
		uint64_t word;
		memcpy(&word, (const char *)e + at, sizeof(word));
		check = (check ^ word) * UINT64_C(0x100000001b3);
	}
	return check;
}

static int64_t place_of(uint32_t slot)
{
	return (int64_t)sizeof(struct head) + (int64_t)slot * (int64_t)sizeof(struct entry);
}

/* The next entry to write, as it is now. */
static bool next_entry(struct failure_file *file, int64_t *place)
{
	struct failure *failure = file->dirty;
	if (!failure)
		return false;
	DL_DELETE(file->dirty, failure);
	failure->dirty = false;
	memset(&file->entry, 0, sizeof(file->entry));
	file->entry.info = failure->info;
	file->entry.check = check_of(&file->entry);
	*place = place_of(failure->slot);
	return true;
}

static void complain(struct failure_file *file, int error)
{
	if (!file->failed)
		log_warning("failures cannot be written to the state directory, and will be "
			    "forgotten when the daemon ends: %s",
			    strerror(error));
	file->failed = true;
}

static void write_next(struct failure_file *file);

static void on_written(uv_fs_t *req)
{
	struct failure_file *file = req->data;
	if (req->result < 0)
		complain(file, (int)-req->result);
	uv_fs_req_cleanup(req);
	file->writes = false;
	file->loop->handles--;
	write_next(file);
}

static void write_next(struct failure_file *file)
{
	int64_t place;
	if (file->writes || !next_entry(file, &place))
		return;
	file->buffer = uv_buf_init((char *)&file->entry, sizeof(file->entry));
	file->req.data = file;
	if (uv_fs_write(file->loop->uv, &file->req, file->fd, &file->buffer, 1, place, on_written))
		return;
	file->writes = true;
	file->loop->handles++;
}

void failure_file_write(struct failure_file *file, struct failure *failure)
{
	if (!failure->dirty)
		DL_APPEND(file->dirty, failure);
	failure->dirty = true;
	if (!file->loop->closing) /* else failure_file_close does */
		write_next(file);
}

void failure_file_forget(struct failure_file *file, struct failure *failure)
{
	if (failure->dirty)
		DL_DELETE(file->dirty, failure);
}

/* Reads what an earlier daemon wrote. False: it is not such a file, or of another version. */
static bool load(struct failure_file *file, struct failures *f)
{
	struct head head;
	struct entry *e = &file->entry;
	if (pread(file->fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != MAGIC ||
	    head.entry_bytes != sizeof(struct entry) || head.entries != FAILURES_MAX)
		return false;
	for (uint32_t slot = 0; slot < FAILURES_MAX; slot++) {
		const ssize_t n = pread(file->fd, e, sizeof(*e), place_of(slot));
		if (n != (ssize_t)sizeof(*e))
			break;
		if (e->check == check_of(e))
			failures_restore(f, &e->info, slot);
	}
	return true;
}

static bool begin_anew(struct failure_file *file)
{
	const struct head head = {MAGIC, sizeof(struct entry), FAILURES_MAX};
	return !ftruncate(file->fd, 0) && pwrite(file->fd, &head, sizeof(head), 0) == sizeof(head);
}

struct failure_file *failure_file_open(struct failures *f, struct loop *loop, const char *directory,
				       int32_t node)
{
	char path[4096], name[32] = "failures";
	struct failure_file *file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	if (node >= 0)
		snprintf(name, sizeof(name), "failures.%d", node);
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file->loop = loop;
	file->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file->fd >= 0 && !flock(file->fd, LOCK_EX | LOCK_NB) &&
	    (load(file, f) || begin_anew(file)))
		return file;
	if (errno == EWOULDBLOCK)
		log_warning("another daemon writes %s: this one forgets its failures when it ends",
			    path);
	else
		log_warning("failures cannot be kept in %s, and will be forgotten when the daemon "
			    "ends: %m",
			    path);
	if (file->fd >= 0)
		close(file->fd);
	free(file);
	return NULL;
}

void failure_file_close(struct failure_file *file)
{
	int64_t place;
	while (next_entry(file, &place))
		if (pwrite(file->fd, &file->entry, sizeof(file->entry), place) < 0)
			complain(file, errno);
	close(file->fd);
	free(file);
}
