/* SPDX-License-Identifier: Apache-2.0 */
#include "operation.h"

#define NONE SVC_BLOCKS_NONE
#define ONE  SVC_BLOCKS_ONE
#define EACH SVC_BLOCKS_EACH
#define DATA (SVC_OP_KNOWN | SVC_OP_HAS_DATA)
#define RED  (DATA | SVC_OP_REDUCES)
#define ROOT SVC_OP_HAS_ROOT
#define PAIR (DATA | SVC_OP_IS_P2P)

/* clang-format off */
const struct svc_operation svc_operations[UINT8_MAX + 1] = {
	[NCCLSVC_ALL_REDUCE]     = {RED,         {ONE,  ONE},  {ONE,  ONE}},
	[NCCLSVC_ALL_GATHER]     = {DATA,        {ONE,  ONE},  {EACH, EACH}},
	[NCCLSVC_REDUCE_SCATTER] = {RED,         {EACH, EACH}, {ONE,  ONE}},
	[NCCLSVC_BROADCAST]      = {DATA | ROOT, {NONE, ONE},  {ONE,  ONE}},
	[NCCLSVC_REDUCE]         = {RED | ROOT,  {ONE,  ONE},  {NONE, ONE}},
	[NCCLSVC_ALL_TO_ALL]     = {DATA,        {EACH, EACH}, {EACH, EACH}},
	[NCCLSVC_GATHER]         = {DATA | ROOT, {ONE,  ONE},  {NONE, EACH}},
	[NCCLSVC_SCATTER]        = {DATA | ROOT, {NONE, EACH}, {ONE,  ONE}},
	[NCCLSVC_SEND]           = {PAIR,        {ONE,  ONE},  {NONE, NONE}},
	[NCCLSVC_RECV]           = {PAIR,        {NONE, NONE}, {ONE,  ONE}},
	[NCCLSVC_BARRIER]        = {SVC_OP_KNOWN, {NONE, NONE}, {NONE, NONE}},
};
/* clang-format on */
