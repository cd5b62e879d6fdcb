/* SPDX-License-Identifier: Apache-2.0
 * Files in dump_dir: the operations of a communicator that has failed. */
#ifndef COMM_DUMP_FILE_H
#define COMM_DUMP_FILE_H

#include "comm/communicator.h"

/* Does an epoch that ends so fail for anybody? To be asked before it ends. */
bool recorder_dump_wanted(const struct communicator *m, const ncclsvc_status *why);
/* This has happened: if the configuration asks for it, a thread writes a file with the operations
 * of the members on this node. */
void recorder_dump_for(struct communicator *m, const ncclsvc_status *why);

#endif
