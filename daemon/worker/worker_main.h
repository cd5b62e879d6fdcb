/* SPDX-License-Identifier: Apache-2.0
 * What the supervisor starts this program as, beside itself. */
#ifndef WORKER_WORKER_MAIN_H
#define WORKER_WORKER_MAIN_H

/* Return the exit code. */
int probe_main(void);
int worker_main(int argc, char *argv[]);

#endif
