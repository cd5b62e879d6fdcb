/* SPDX-License-Identifier: Apache-2.0
 * What the supervisor starts this program as, beside itself. */
#ifndef WORKER_WORKER_MAIN_H
#define WORKER_WORKER_MAIN_H

/* argv[0] starts so, then " gpuN", and with several nodes " of node N"; the UUID, spin_us,
 * WORKER_REPLAYS or not, what to pin or nothing */
#define WORKER_NAME    "ncclsvcd: worker"
#define WORKER_NODE    " of node "
#define WORKER_REPLAYS "replays"
#define WORKER_PROBE   "ncclsvcd: probe"

/* Return the exit code. */
int probe_main(void);
int worker_main(int argc, char *argv[]);

#endif
