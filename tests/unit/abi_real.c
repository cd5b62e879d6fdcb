/* SPDX-License-Identifier: Apache-2.0
 * The same numbers from NVIDIA's headers, if they are installed. */
#if defined(HAVE_CUDA_H)
#include <cuda.h>
#endif
#if defined(HAVE_NCCL_H)
#include <nccl.h>
#endif

#include "abi_list.h"

#define NOTHING                                                                                    \
	{                                                                                          \
		0                                                                                  \
	}

#if defined(HAVE_CUDA_H)
#define EXPANDED(name) #name
#define SYMBOL(name)   {NULL, EXPANDED(name)},
const struct abi_value real_cuda[] = {ABI_CUDA(ABI_C, ABI_S, ABI_O)};
const size_t n_real_cuda = sizeof(real_cuda) / sizeof(real_cuda[0]);
const struct abi_symbol real_symbols[] = {ABI_CUDA_FUNCTIONS(SYMBOL)};
const size_t n_real_symbols = sizeof(real_symbols) / sizeof(real_symbols[0]);
#else
const struct abi_value real_cuda[] = {NOTHING};
const size_t n_real_cuda = 0;
const struct abi_symbol real_symbols[] = {NOTHING};
const size_t n_real_symbols = 0;
#endif

/* NCCL before 2.28 lacks some of these. */
#if defined(HAVE_NCCL_H) && NCCL_VERSION_CODE >= 22800
#define REAL(ours, real) {#real, (long long)(real)},
const struct abi_value real_nccl[] = {ABI_NCCL(ABI_C, ABI_S, ABI_O, REAL)};
const size_t n_real_nccl = sizeof(real_nccl) / sizeof(real_nccl[0]);
#else
const struct abi_value real_nccl[] = {NOTHING};
const size_t n_real_nccl = 0;
#endif

#if defined(HAVE_NCCL_H) && NCCL_VERSION_CODE >= 23200
const struct abi_value real_nccl_new[] = {ABI_NCCL_NEW(ABI_C, ABI_S, ABI_O)};
const size_t n_real_nccl_new = sizeof(real_nccl_new) / sizeof(real_nccl_new[0]);
#else
const struct abi_value real_nccl_new[] = {NOTHING};
const size_t n_real_nccl_new = 0;
#endif
