/* SPDX-License-Identifier: Apache-2.0
 * The other programs as which the supervisor starts this executable. */
#ifndef WORKER_WORKER_MAIN_H
#define WORKER_WORKER_MAIN_H

/* Return the exit code. */
int probe_main(void);
int worker_main(int argc, char *argv[]);

#endif
