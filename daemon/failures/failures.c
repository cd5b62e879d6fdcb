/* SPDX-License-Identifier: Apache-2.0 */
#include "failures.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/printable.h"

static uint64_t unix_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct failure_owner owner_of(const ncclsvc_failure_info *info)
{
	struct failure_owner owner = {.uid = info->uid};
	memcpy(owner.tenant, info->tenant, strnlen(info->tenant, sizeof(owner.tenant) - 1));
	return owner;
}

static struct failure_share *share_of(struct failures *f, const ncclsvc_failure_info *info)
{
	const struct failure_owner owner = owner_of(info);
	struct failure_share *share;
	HASH_FIND(hh, f->shares, &owner, sizeof(owner), share);
	if (share)
		return share;
	share = calloc(1, sizeof(*share));
	if (!share)
		return NULL;
	share->owner = owner;
	HASH_ADD(hh, f->shares, owner, sizeof(share->owner), share);
	return share;
}

static bool is_of(const ncclsvc_failure_info *info, const struct failure_share *share)
{
	const struct failure_owner owner = owner_of(info);
	return !memcmp(&owner, &share->owner, sizeof(owner));
}

static void remove_failure(struct failures *f, struct failure *failure)
{
	struct failure_share *share = share_of(f, &failure->info);
	if (f->file)
		failure_file_forget(f->file, failure);
	if (failure->pidfd >= 0)
		close(failure->pidfd);
	HASH_DEL(f->all, failure);
	f->of_slot[failure->slot] = NULL;
	if (failure->slot < f->free_slot)
		f->free_slot = failure->slot;
	if (share && !--share->n) {
		HASH_DEL(f->shares, share);
		free(share);
	}
	free(failure);
}

/* Its slot is free then, for the next one to overwrite in the file. */
static void remove_oldest(struct failures *f)
{
	const struct failure_share *most = f->shares;
	for (const struct failure_share *s = f->shares; s; s = s->hh.next)
		if (s->n > most->n)
			most = s;
	struct failure *oldest = f->all;
	while (oldest && !is_of(&oldest->info, most))
		oldest = oldest->hh.next;
	if (oldest)
		remove_failure(f, oldest);
}

static struct failure *insert(struct failures *f, const ncclsvc_failure_info *info, uint32_t slot)
{
	struct failure_share *share = share_of(f, info);
	struct failure *failure = share ? calloc(1, sizeof(*failure)) : NULL;
	if (!failure) {
		if (share && !share->n) {
			HASH_DEL(f->shares, share);
			free(share);
		}
		return NULL;
	}
	failure->info = *info;
	failure->slot = slot;
	failure->pidfd = -1;
	share->n++;
	f->of_slot[slot] = failure;
	HASH_ADD(hh, f->all, info.failure, sizeof(failure->info.failure), failure);
	return failure;
}

struct failure *failures_add(struct failures *f, const ncclsvc_failure_info *info)
{
	ncclsvc_failure_info i = *info;
	if (HASH_COUNT(f->all) >= FAILURES_MAX)
		remove_oldest(f);
	while (f->of_slot[f->free_slot])
		f->free_slot++;
	i.failure = f->last + 1;
	i.unix_ns = unix_now();
	svc_make_printable(i.text, sizeof(i.text));
	struct failure *failure = insert(f, &i, f->free_slot);
	if (!failure)
		return NULL;
	f->last++;
	failure->noted_ns = clock_now();
	failures_changed(f, failure);
	return failure;
}

struct failure *failures_find(const struct failures *f, uint64_t number)
{
	struct failure *failure;
	HASH_FIND(hh, f->all, &number, sizeof(number), failure);
	return failure;
}

void failures_changed(struct failures *f, struct failure *failure)
{
	if (f->file)
		failure_file_write(f->file, failure);
}

static bool terminated(const char *text, size_t size)
{
	return memchr(text, '\0', size);
}

bool failures_restore(struct failures *f, const ncclsvc_failure_info *info, uint32_t slot)
{
	if (!info->failure || slot >= FAILURES_MAX || f->of_slot[slot] ||
	    failures_find(f, info->failure) || !terminated(info->label, sizeof(info->label)) ||
	    !terminated(info->host, sizeof(info->host)) ||
	    !terminated(info->job, sizeof(info->job)) ||
	    !terminated(info->tenant, sizeof(info->tenant)) ||
	    !terminated(info->text, sizeof(info->text)))
		return false;
	if (info->failure > f->last)
		f->last = info->failure;
	return insert(f, info, slot);
}

static int by_number(const struct failure *a, const struct failure *b)
{
	return (a->info.failure > b->info.failure) - (a->info.failure < b->info.failure);
}

void failures_open(struct failures *f, struct loop *loop, const char *directory, int32_t node)
{
	*f = (struct failures){0};
	if (directory)
		f->file = failure_file_open(f, loop, directory, node);
	HASH_SORT(f->all, by_number);
	/* Numbers of communicators were the former daemon's. */
	for (struct failure *failure = f->all; failure; failure = failure->hh.next)
		failure->info.comm = 0;
}

void failures_close(struct failures *f)
{
	if (f->file)
		failure_file_close(f->file);
	f->file = NULL;
	while (f->all)
		remove_failure(f, f->all);
}
