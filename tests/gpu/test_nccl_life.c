/* SPDX-License-Identifier: Apache-2.0 */
#include "dropin.h"
const struct gpu_test nccl_life_tests[] = {{0}};
