/* SPDX-License-Identifier: Apache-2.0
 * Converts ONNX Runtime's tensors to ncclsvc's: both are dense and row-major. */
#include <stdlib.h>

#include "ort.h"

struct type {
	const char *name;
	int service; /* ncclsvc_type; -1: none */
};

static const struct type types[] = {
	[ORT_TYPE_UNDEFINED] = {"undefined", -1},
	[ORT_TYPE_FLOAT] = {"float", NCCLSVC_FLOAT32},
	[ORT_TYPE_UINT8] = {"uint8", NCCLSVC_UINT8},
	[ORT_TYPE_INT8] = {"int8", NCCLSVC_INT8},
	[ORT_TYPE_UINT16] = {"uint16", NCCLSVC_UINT16},
	[ORT_TYPE_INT16] = {"int16", NCCLSVC_INT16},
	[ORT_TYPE_INT32] = {"int32", NCCLSVC_INT32},
	[ORT_TYPE_INT64] = {"int64", NCCLSVC_INT64},
	[ORT_TYPE_STRING] = {"string", -1},
	[ORT_TYPE_BOOL] = {"bool", NCCLSVC_BOOL},
	[ORT_TYPE_FLOAT16] = {"float16", NCCLSVC_FLOAT16},
	[ORT_TYPE_DOUBLE] = {"double", NCCLSVC_FLOAT64},
	[ORT_TYPE_UINT32] = {"uint32", NCCLSVC_UINT32},
	[ORT_TYPE_UINT64] = {"uint64", NCCLSVC_UINT64},
	[ORT_TYPE_COMPLEX64] = {"complex64", -1},
	[ORT_TYPE_COMPLEX128] = {"complex128", -1},
	[ORT_TYPE_BFLOAT16] = {"bfloat16", NCCLSVC_BFLOAT16},
	[ORT_TYPE_FLOAT8E4M3FN] = {"float8e4m3fn", NCCLSVC_FLOAT8E4M3},
	[ORT_TYPE_FLOAT8E4M3FNUZ] = {"float8e4m3fnuz", -1},
	[ORT_TYPE_FLOAT8E5M2] = {"float8e5m2", NCCLSVC_FLOAT8E5M2},
	[ORT_TYPE_FLOAT8E5M2FNUZ] = {"float8e5m2fnuz", -1},
	[ORT_TYPE_UINT4] = {"uint4", NCCLSVC_UINT4},
	[ORT_TYPE_INT4] = {"int4", NCCLSVC_INT4},
};
#define TYPES (int)(sizeof(types) / sizeof(types[0]))

const char *value_type_name(int64_t type)
{
	return type < 0 || type >= TYPES ? "?" : types[type].name;
}

int value_type(int64_t type)
{
	return type < 0 || type >= TYPES ? -1 : types[type].service;
}

OrtStatus *values_make(const OrtApi *ort, struct values *v, size_t n)
{
	*v = (struct values){.n = n};
	v->tensors = calloc(n + 1, sizeof(*v->tensors));
	v->dims = calloc(n + 1, sizeof(*v->dims));
	if (v->tensors && v->dims)
		return NULL;
	values_free(v);
	return status_new(ort, ORT_ERROR_FAIL, "out of memory for a list of %zu tensors", n);
}

void values_free(struct values *v)
{
	free(v->tensors);
	free(v->dims);
	*v = (struct values){0};
}

OrtStatus *value_describe(const OrtApi *ort, const OrtTensorTypeAndShapeInfo *info,
			  ncclsvc_tensor *tensor, int64_t *dims)
{
	int type = ORT_TYPE_UNDEFINED;
	size_t n = 0;
	OrtStatus *status = ort->GetTensorElementType(info, &type);
	if (!status)
		status = ort->GetDimensionsCount(info, &n);
	if (status)
		return status;
	if (value_type(type) < 0)
		return status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				  "elements have type %s (%d), which ncclsvc does not support",
				  value_type_name(type), type);
	if (n > NCCLSVC_DIMS_MAX)
		return status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
				  "a tensor has %zu dimensions, the limit is %d", n,
				  NCCLSVC_DIMS_MAX);
	*tensor = (ncclsvc_tensor){
		.type = (ncclsvc_type)value_type(type), .ndims = (int)n, .dims = dims};
	return ort->GetDimensions(info, dims, n);
}

static OrtStatus *input(const OrtApi *ort, const OrtKernelContext *context, size_t i,
			const OrtValue **value, OrtTensorTypeAndShapeInfo **info)
{
	*value = NULL;
	OrtStatus *status = ort->KernelContext_GetInput(context, i, value);
	if (status)
		return status;
	if (!*value)
		return status_new(ort, ORT_ERROR_INVALID_ARGUMENT, "input %zu is missing", i);
	return ort->GetTensorTypeAndShape(*value, info);
}

/* The interface has no call for read access; on an input, this call only reads. */
static OrtStatus *data_of(const OrtApi *ort, const OrtValue *value, void **data)
{
	return ort->GetTensorMutableData((OrtValue *)value, data);
}

OrtStatus *values_inputs(const OrtApi *ort, const OrtKernelContext *context, size_t first,
			 struct values *v)
{
	size_t n = 0;
	*v = (struct values){0};
	OrtStatus *status = ort->KernelContext_GetInputCount(context, &n);
	if (!status)
		status = values_make(ort, v, n - first);
	for (size_t i = 0; !status && i < v->n; i++) {
		const OrtValue *value;
		OrtTensorTypeAndShapeInfo *info = NULL;
		status = input(ort, context, first + i, &value, &info);
		if (!status)
			status = value_describe(ort, info, &v->tensors[i], v->dims[i]);
		if (!status)
			status = data_of(ort, value, &v->tensors[i].data);
		if (info)
			ort->ReleaseTensorTypeAndShapeInfo(info);
	}
	if (status)
		values_free(v);
	return status;
}

OrtStatus *value_output(const OrtApi *ort, OrtKernelContext *context, size_t i,
			ncclsvc_tensor *tensor)
{
	OrtValue *value = NULL;
	OrtStatus *status = ort->KernelContext_GetOutput(context, i, tensor->dims,
							 (size_t)tensor->ndims, &value);
	if (status)
		return status;
	if (!value)
		return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				  "output %zu has no name in the graph: give it one", i);
	return ort->GetTensorMutableData(value, &tensor->data);
}

OrtStatus *value_element(const OrtApi *ort, const OrtKernelContext *context, size_t i,
			 const char *name, const void **element)
{
	const OrtValue *value;
	OrtTensorTypeAndShapeInfo *info = NULL;
	size_t n = 0;
	void *data = NULL;
	OrtStatus *status = input(ort, context, i, &value, &info);
	if (!status)
		status = ort->GetTensorShapeElementCount(info, &n);
	if (!status && n != 1)
		status = status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				    "%s has %zu elements: it must have one", name, n);
	if (!status)
		status = data_of(ort, value, &data);
	if (info)
		ort->ReleaseTensorTypeAndShapeInfo(info);
	*element = data;
	return status;
}
