/* SPDX-License-Identifier: Apache-2.0
 * A process's connections to a GPU. A stream that waits for memory to change holds one of them.
 * While all are held, no other stream can begin anything: compute waits for communication, and
 * ranks may wait for each other. Some may be behind one of them sooner: of 8, when 5 are held.
 * CUDA reads how many there are to be when it is initialized; all this was measured with CUDA
 * 13.0. */
#ifndef PROTO_CUDA_CONNECTIONS_H
#define PROTO_CUDA_CONNECTIONS_H

#define CUDA_CONNECTIONS_VARIABLE "CUDA_DEVICE_MAX_CONNECTIONS"

#define CUDA_CONNECTIONS_DEFAULT 8 /* where it is not set */
#define CUDA_CONNECTIONS_MPS	 2 /* the same through MPS */
#define CUDA_CONNECTIONS_MAX	 32

/* One of these numbers, as the variable's value. */
#define CUDA_CONNECTIONS_TEXT(number) CUDA_CONNECTIONS_QUOTED(number)
#define CUDA_CONNECTIONS_QUOTED(text) #text

#endif
