/* SPDX-License-Identifier: Apache-2.0
 *
 * image.h: the kernels as the compiler for GPUs has made them, with a zero behind, since PTX is a
 * string. */

#ifdef HAVE_IMAGES
#define DATA(file) .incbin file
#else
#define DATA(file)
#endif

/* As C has it: array[], and its length. */
#define IMAGE(array, length, file) \
	.hidden array, length; \
	.globl array, length; \
	.type array, %object; \
	.type length, %object; \
	.balign 64; \
array: \
	DATA(file); \
0:	.byte 0; \
	.size array, . - array; \
	.balign 8; \
length:	.quad 0b - array; \
	.size length, 8

	.section .rodata
IMAGE(ncclsvc_peer_collective_image, ncclsvc_peer_collective_image_size, "collective.image")
IMAGE(ncclsvc_peer_direct_image, ncclsvc_peer_direct_image_size, "direct.image")
IMAGE(ncclsvc_peer_messages_image, ncclsvc_peer_messages_image_size, "messages.image")

	.section .note.GNU-stack, "", %progbits
