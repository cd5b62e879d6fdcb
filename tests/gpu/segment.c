/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

static void map_chunk(const struct segment *s, size_t i)
{
	CUmemGenericAllocationHandle handle;
	const CUdeviceptr p = s->base + i * s->chunk;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->gpu},
	};
	const CUmemAccessDesc access = {.location = prop.location,
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CHECK_CU(cu.cuMemCreate(&handle, s->chunk, &prop, 0));
	CHECK_CU(cu.cuMemMap(p, s->chunk, 0, handle, 0));
	CHECK_CU(cu.cuMemRelease(handle));
	CHECK_CU(cu.cuMemSetAccess(p, s->chunk, &access, 1));
}

void segment_open(struct segment *s, int gpu, size_t chunk, size_t reserved)
{
	*s = (struct segment){.gpu = gpu, .chunk = chunk, .reserved = reserved};
	CHECK_CU(cu.cuMemAddressReserve(&s->base, reserved * chunk, 0, 0, 0));
}

void segment_size(struct segment *s, size_t chunks)
{
	while (s->mapped < chunks)
		map_chunk(s, s->mapped++);
	while (s->mapped > chunks)
		CHECK_CU(cu.cuMemUnmap(s->base + --s->mapped * s->chunk, s->chunk));
}

void segment_close(struct segment *s)
{
	segment_size(s, 0);
	CHECK_CU(cu.cuMemAddressFree(s->base, s->reserved * s->chunk));
}
