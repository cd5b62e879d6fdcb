/* SPDX-License-Identifier: Apache-2.0
 * The public headers also compile as C++, including NCCLSVC_TENSOR. */
#include <cstdio>
#include <cstring>

#include "ncclsvc_plan.h"
#include "ncclsvc_tensors.h"
#include "ncclsvc_world.h"

static uint64_t bytes_of(const ncclsvc_tensor &t)
{
	uint64_t bytes = 0;
	return ncclsvc_tensor_size(&t, nullptr, &bytes) ? UINT64_MAX : bytes;
}

int main()
{
	float x[24] = {};
	bool good = bytes_of(NCCLSVC_TENSOR(x, NCCLSVC_FLOAT32, 2, 3, 4)) == sizeof(x);
	good = good && bytes_of(NCCLSVC_TENSOR(x, NCCLSVC_FLOAT64)) == 8;
	good = good && bytes_of(NCCLSVC_TENSOR(x, NCCLSVC_INT8, 7, 0)) == 0;
	ncclsvc_result r =
		ncclsvc_tensor_send(nullptr, NCCLSVC_TENSOR(x, NCCLSVC_FLOAT32, 24), 0, 0, 0);
	good = good && r == NCCLSVC_INVALID_ARGUMENT;
	r = ncclsvc_set_error(NCCLSVC_LIMIT, "%d\n", 5);
	good = good && r == NCCLSVC_LIMIT && !strcmp(ncclsvc_last_error(), "5 ");
	puts(good ? "the headers are C++" : ncclsvc_last_error());
	return !good;
}
