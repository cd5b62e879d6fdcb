/* SPDX-License-Identifier: Apache-2.0
 * A process's connections to a GPU. A stream that waits for memory to change holds one connection.
 * While all are held, no other stream can start work: compute waits for communication, and ranks
 * may deadlock. A stream may get stuck behind a held connection even earlier: with 8 connections,
 * when 5 are held. CUDA reads the number of connections at its initialization. All this was
 * measured with CUDA 13.0. */
#ifndef PROTO_CUDA_CONNECTIONS_H
#define PROTO_CUDA_CONNECTIONS_H

#define CUDA_CONNECTIONS_VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"

#define CUDA_CONNECTIONS_DEFAULT 8 /* if the variable is unset */
#define CUDA_CONNECTIONS_MPS	 2 /* likewise, through MPS */
#define CUDA_CONNECTIONS_MAX	 32

/* One of these values, for the variable. */
#define CUDA_CONNECTIONS_TEXT(number) CUDA_CONNECTIONS_QUOTED(number)
#define CUDA_CONNECTIONS_QUOTED(text) #text

#endif
