/* SPDX-License-Identifier: Apache-2.0
 * NCCL's variables, and the encryption of its connections. Both belong to the NCCL in the daemon,
 * which reads the daemon's environment. */
#include "dropin.h"

static ncclResult_t refuse(const char *function)
{
	return fail(ncclInvalidUsage,
		    "%s: NCCL runs in the daemon: set its variables in the environment of ncclsvcd",
		    function);
}

ncclResult_t ncclParamBind(ncclParamHandle_t *handle, const char *key)
{
	(void)key;
	if (handle)
		*handle = NULL;
	return refuse("ncclParamBind");
}
NCCL_ALIAS(ncclParamBind);

/* There are no handles to read. */
#define PARAM_GET(name, type)                                                                      \
	ncclResult_t name(ncclParamHandle_t handle, type *out)                                     \
	{                                                                                          \
		(void)handle;                                                                      \
		(void)out;                                                                         \
		return refuse(#name);                                                              \
	}                                                                                          \
	NCCL_ALIAS(name)
PARAM_GET(ncclParamGetI8, int8_t);
PARAM_GET(ncclParamGetI16, int16_t);
PARAM_GET(ncclParamGetI32, int32_t);
PARAM_GET(ncclParamGetI64, int64_t);
PARAM_GET(ncclParamGetU8, uint8_t);
PARAM_GET(ncclParamGetU16, uint16_t);
PARAM_GET(ncclParamGetU32, uint32_t);
PARAM_GET(ncclParamGetU64, uint64_t);
PARAM_GET(ncclParamGetStr, const char *);

ncclResult_t ncclParamGet(ncclParamHandle_t handle, void *out, int size, int *bytes)
{
	(void)handle;
	(void)out;
	(void)size;
	(void)bytes;
	return refuse("ncclParamGet");
}
NCCL_ALIAS(ncclParamGet);

ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *bytes)
{
	(void)key;
	if (value)
		*value = NULL;
	if (bytes)
		*bytes = 0;
	return refuse("ncclParamGetParameter");
}
NCCL_ALIAS(ncclParamGetParameter);

ncclResult_t ncclParamGetAllParameterKeys(const char ***keys, int *n)
{
	if (keys)
		*keys = NULL;
	if (n)
		*n = 0;
	return refuse("ncclParamGetAllParameterKeys");
}
NCCL_ALIAS(ncclParamGetAllParameterKeys);

void ncclParamDumpAll(void)
{
	refuse("ncclParamDumpAll");
}
NCCL_ALIAS(ncclParamDumpAll);

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config)
{
	if (!config || config->magic != NCCL_MAGIC ||
	    config->size < offsetof(ncclEncryptionConfig_t, mode) + sizeof(config->mode))
		return fail(ncclInvalidArgument, "ncclSetEncryption: config was not initialized "
						 "with NCCL_ENCRYPTION_CONFIG_INITIALIZER");
	if (config->mode == NCCL_ENCRYPTION_MODE_NONE)
		return ncclSuccess;
	return fail(ncclInvalidUsage, "ncclSetEncryption: NCCL's connections are in the daemon: "
				      "set their encryption in the environment of ncclsvcd");
}
NCCL_ALIAS(ncclSetEncryption);
