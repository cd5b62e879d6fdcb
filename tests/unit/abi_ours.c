/* SPDX-License-Identifier: Apache-2.0 */
#include "abi_list.h"
#include "proto/abi/cuda_graph_abi.h"
#include "proto/abi/nccl_abi.h"
#include "proto/ncclsvc_types.h"

#define OURS(ours, real)		       {#real, (long long)(ours)},
#define SYMBOL(function, exported, parameters) {#function, exported},

const struct abi_value ours_cuda[] = {ABI_CUDA(ABI_C, ABI_S, ABI_O)};
const size_t n_ours_cuda = sizeof(ours_cuda) / sizeof(ours_cuda[0]);
const struct abi_value ours_nccl[] = {ABI_NCCL(ABI_C, ABI_S, ABI_O, OURS)};
const size_t n_ours_nccl = sizeof(ours_nccl) / sizeof(ours_nccl[0]);
const struct abi_value ours_nccl_new[] = {ABI_NCCL_NEW(ABI_C, ABI_S, ABI_O)};
const size_t n_ours_nccl_new = sizeof(ours_nccl_new) / sizeof(ours_nccl_new[0]);
const struct abi_symbol ours_symbols[] = {
	CUDA_FUNCTIONS(SYMBOL) CUDA_KERNEL_FUNCTIONS(SYMBOL) CUDA_OPTIONAL_FUNCTIONS(SYMBOL)
		CUDA_CAPTURE_FUNCTIONS(SYMBOL) CUDA_GRAPH_FUNCTIONS(SYMBOL)};
const size_t n_ours_symbols = sizeof(ours_symbols) / sizeof(ours_symbols[0]);
