/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

ncclResult_t driver_open(const struct cuda **cuda)
{
	const char *why;
	*cuda = cuda_driver(&why);
	return *cuda ? ncclSuccess : fail(ncclInvalidUsage, "cannot use GPUs: %s", why);
}
