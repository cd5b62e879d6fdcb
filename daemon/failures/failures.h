/* SPDX-License-Identifier: Apache-2.0
 * The failures of the last days: what failed, who was at fault, and what followed. Of the
 * supervisor's thread. They are also kept in a file, so that a restarted daemon still has them. */
#ifndef FAILURES_FAILURES_H
#define FAILURES_FAILURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "proto/ncclsvc_types.h"

#define FAILURES_MAX 10000

struct loop;
struct failure_file;

struct failure {
	ncclsvc_failure_info info;
	ncclsvc_status status; /* that tasks had; result 0: none, or of an earlier daemon */
	uint32_t slot;	       /* its place in the file */
	uint64_t noted_ns;     /* CLOCK_MONOTONIC; 0: by an earlier daemon */
	bool logged;
	uint32_t logged_ended, logged_comms; /* of info.ended and info.comms, in the log */
	int pidfd;			     /* of a process whose end is vague; -1: none */
	bool dirty;			     /* the file has an older version, or none */
	struct failure *prev, *next;	     /* while it is dirty */
	UT_hash_handle hh;		     /* by number; in their order */
};

struct failure_owner {
	uint32_t uid;
	char tenant[NCCLSVC_JOB_BYTES]; /* zeros follow the text */
};

struct failure_share {
	struct failure_owner owner;
	uint32_t n;
	UT_hash_handle hh;
};

struct failures {
	struct failure *all;
	struct failure_share *shares; /* how many each tenant has */
	struct failure *of_slot[FAILURES_MAX];
	uint32_t free_slot; /* none below is free */
	uint64_t last;	    /* number */
	struct failure_file *file;
};

/* directory: where the file is; NULL: there is none. node: of several, whose file it is; -1: this
 * node is alone. Without memory or with a file that cannot be used, failures are kept in memory,
 * which the log says. */
void failures_open(struct failures *f, struct loop *loop, const char *directory, int32_t node);
/* Writes what the file lacks. */
void failures_close(struct failures *f);

/* Adds one, with its number and time. If there are FAILURES_MAX, it replaces the oldest one of the
 * tenant that has most. NULL: out of memory. */
struct failure *failures_add(struct failures *f, const ncclsvc_failure_info *info);
/* NULL: it is too old, or none has that number. */
struct failure *failures_find(const struct failures *f, uint64_t number);
/* Its info has changed. */
void failures_changed(struct failures *f, struct failure *failure);

/* ---- For failures.c and file.c ---- */

/* One that the file had. False: it is not valid, or there is no memory. */
bool failures_restore(struct failures *f, const ncclsvc_failure_info *info, uint32_t slot);
/* NULL: none that can be used. */
struct failure_file *failure_file_open(struct failures *f, struct loop *loop, const char *directory,
				       int32_t node);
void failure_file_write(struct failure_file *file, struct failure *failure);
/* It is about to be freed. */
void failure_file_forget(struct failure_file *file, struct failure *failure);
void failure_file_close(struct failure_file *file);

#endif
