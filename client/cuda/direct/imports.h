/* SPDX-License-Identifier: Apache-2.0
 * Imports: what importer.c, import_map.c and import_table.c share. */
#ifndef CLIENT_CUDA_IMPORTS_H
#define CLIENT_CUDA_IMPORTS_H

#include "core/session_handle.h"
#include "peer.h"

#define ANSWER_MS 2000 /* how long the daemon may take */

struct import {
	struct import *next;
	CUcontext context;
	CUdeviceptr at;
	size_t bytes;
	uint64_t *mappings; /* bytes of each mapping; the driver unmaps only whole ones */
	uint32_t nmappings;
	enum {
		IMPORT_NONE, /* it could not be mapped */
		IMPORT_HANDLE,
		IMPORT_MAPPINGS,
		IMPORT_HERE, /* memory of this process */
	} kind;
	uint32_t rank, slot, number;
	bool told; /* in the log of this connection's daemon */
};

struct importer {
	atomic_uint refs; /* of the session, the thread, and members */
	const struct cuda *cuda;
	pthread_t thread;
	pthread_mutex_t use; /* held while the thread uses the session */
	ncclsvc_session *session;
	/* With the session's lock: the member whose log entry the thread is handling; NULL: none.
	 */
	struct peer *busy;
	uint32_t connections; /* session_connections, of the bell */
	int wake, bell;
	pthread_mutex_t lock;
	/* With this lock: a bell for the thread to take, -1: none; and imports to be freed when no
	 * kernel runs. */
	int new_bell;
	struct import *discarded;
	bool freeing; /* the thread is freeing discarded imports */
};

/* An entry of a log, which the thread handles without the session's lock. */
struct job {
	struct peer *peer;
	uint32_t handle; /* the communicator's */
	uint64_t position;
	uint32_t connections; /* session_connections */
	struct svc_shared_reply shared;
	struct import *import;
};

/* NULL: the session closes. Otherwise locked. */
static inline ncclsvc_session *session_use(struct importer *m)
{
	pthread_mutex_lock(&m->use);
	if (!m->session) {
		pthread_mutex_unlock(&m->use);
		return NULL;
	}
	session_lock(m->session);
	return m->session;
}

static inline void session_unuse(struct importer *m)
{
	session_unlock(m->session);
	pthread_mutex_unlock(&m->use);
}

/* ---- import_map.c ---- */

/* Maps the region. If that fails, the import stays empty: the memory may be gone, and then a DROP
 * follows. */
void import_map(struct importer *m, struct job *job);
void import_free(const struct cuda *cuda, struct import *i);

/* ---- import_table.c. Locked. ---- */

/* Whether the share is known: its rank has said it again. */
bool import_table_knows(const struct job *job);
/* The import is kept, and kernels can find it. */
void import_table_add(struct job *job);
/* The rank has said again what it shares. Returns the imports that it has not named. */
struct import *import_table_count(const struct job *job);
/* The import is to be freed. */
void import_table_drop(struct job *job);

#endif
