/* SPDX-License-Identifier: Apache-2.0
 * The kernels as data for cuModuleLoadData: a fat binary, or PTX if only clang was available at
 * build time. Without a GPU compiler, the sizes are 0. */
#ifndef KERNELS_IMAGE_H
#define KERNELS_IMAGE_H

#include <stddef.h>

extern const unsigned char ncclsvc_peer_collective_image[], ncclsvc_peer_direct_image[],
	ncclsvc_peer_messages_image[];
extern const size_t ncclsvc_peer_collective_image_size, ncclsvc_peer_direct_image_size,
	ncclsvc_peer_messages_image_size;

#endif
