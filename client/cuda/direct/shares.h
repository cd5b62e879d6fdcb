/* SPDX-License-Identifier: Apache-2.0
 * Memory that ranks share with each other: this rank's, and that of others, which is mapped for
 * this rank's kernels. */
#ifndef CLIENT_CUDA_SHARES_H
#define CLIENT_CUDA_SHARES_H

#include "cuda/gpu_state.h"

struct importer; /* the session's thread */
struct peer;

/* ---- shares.c ---- */

/* Finds or registers the buffers of large operations, and shares them. If it returns OK but is not
 * finished, it yielded, and the caller must check everything again. *since is 0 at first. Locked;
 * yields. */
ncclsvc_result shares_prepare(ncclsvc_session *s, struct op *ops, unsigned n, uint64_t *since,
			      bool *finished);
/* After the log of shares was reset (p->said is 0): says again what the rank shares, so that other
 * ranks keep their imports, or map them again. After a failure, a second call continues where the
 * first one stopped. Locked; yields. */
ncclsvc_result shares_again(ncclsvc_session *s, struct peer *p, uint32_t handle);
/* The epoch is over. Locked. */
void shares_end(struct gpu *g, struct peer *p);

/* ---- importer.c ---- */

/* The member's kernels are open: maps what others share, in the background. If that is not
 * possible, large collectives go through staging memory. Yields; not locked. */
void imports_begin(ncclsvc_session *s, struct peer *p);
/* After a restart of the daemon: the log begins anew, with what the others say again. Locked;
 * yields. */
ncclsvc_result imports_again(ncclsvc_session *s, struct peer *p);
/* Unmaps the member's imports, and blocks new ones until imports.asleep is cleared. False: the
 * communicator was aborted or has other kernels; or the deadline passed, as kernels of other
 * communicators run, or the driver takes long: try again. Locked; yields. */
bool imports_sleep(ncclsvc_session *s, const ncclsvc_comm *comm, struct peer *p, uint64_t deadline);
/* Lets go of the member's imports, in the background: the driver may wait for other kernels. */
void imports_discard(struct peer *p);
/* When the session closes, and its kernels have ended or are aborted. Waits for the thread, for a
 * short time. */
void importer_stop(struct gpu *g);
void importer_unref(struct importer *m);
/* The thread looks for news. */
void importer_wake(struct importer *m);

#endif
