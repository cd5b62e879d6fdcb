/* SPDX-License-Identifier: Apache-2.0
 * A node of a graph. Everything that can be refused is refused when the graph is loaded, so that no
 * other rank waits for an operation that never comes. */
#include <stdlib.h>
#include <string.h>

#include "ort.h"

/* ---- Attributes ---- */

/* Reading an attribute failed: either the node does not have it, which is fine, or it has another
 * type. */
static OrtStatus *check_absent(const OrtApi *ort, const OrtKernelInfo *info, const char *name,
			       const char *kind, OrtStatus *failed)
{
	int64_t integer;
	float real;
	size_t length = 0, integers = 0, reals = 0;
	OrtStatus *const reads[] = {
		failed,
		ort->KernelInfoGetAttribute_int64(info, name, &integer),
		ort->KernelInfoGetAttribute_float(info, name, &real),
		ort->KernelInfoGetAttribute_string(info, name, NULL, &length),
		ort->KernelInfoGetAttributeArray_int64(info, name, NULL, &integers),
		ort->KernelInfoGetAttributeArray_float(info, name, NULL, &reals),
	};
	bool absent = true;
	for (size_t i = 0; i < sizeof(reads) / sizeof(*reads); i++) {
		absent = absent && reads[i];
		if (reads[i])
			ort->ReleaseStatus(reads[i]);
	}
	return absent ? NULL
		      : status_new(ort, ORT_ERROR_INVALID_ARGUMENT, "the attribute %s is not %s",
				   name, kind);
}

static OrtStatus *take_int(const OrtApi *ort, const OrtKernelInfo *info, const char *name,
			   int64_t otherwise, int64_t *value)
{
	OrtStatus *status = ort->KernelInfoGetAttribute_int64(info, name, value);
	if (!status)
		return NULL;
	*value = otherwise;
	return check_absent(ort, info, name, "an integer", status);
}

static OrtStatus *take_group(const OrtApi *ort, const OrtKernelInfo *info, struct kernel *k)
{
	int64_t type;
	OrtStatus *status = take_int(ort, info, "group_type", NCCLSVC_GROUP_GLOBAL, &type);
	if (!status && (type < 0 || type >= NCCLSVC_GROUP_TYPES))
		status = status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				    "group_type is %lld: groups are 0 (global), 1 (data), 2 "
				    "(node-local data), 3 (cross-node data), 4 (horizontal) and 5 "
				    "(pipeline)",
				    (long long)type);
	k->group = status ? NCCLSVC_GROUP_GLOBAL : (ncclsvc_group_type)type;
	return status;
}

static OrtStatus *take_shapes(const OrtApi *ort, const OrtKernelInfo *info, struct kernel *k)
{
	char text[16] = "";
	size_t size = 0;
	k->shapes = NCCLSVC_SHAPES_AHEAD;
	OrtStatus *status = ort->KernelInfoGetAttribute_string(info, "shapes", NULL, &size);
	if (status)
		return check_absent(ort, info, "shapes", "a string", status);
	if (size <= sizeof(text))
		status = ort->KernelInfoGetAttribute_string(info, "shapes", text, &size);
	if (status || !strcmp(text, "ahead"))
		return status;
	k->shapes = NCCLSVC_SHAPES_STATIC;
	if (!strcmp(text, "static"))
		return NULL;
	return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
			  "the attribute shapes must be 'ahead' or 'static'");
}

/* ---- Types ---- */

/* The type and shape that the graph declares for an input or output; without a shape, ndims is -1.
 */
static OrtStatus *describe(const OrtApi *ort, const OrtKernelInfo *info, bool output, size_t i,
			   ncclsvc_tensor *tensor, int64_t *dims)
{
	OrtTypeInfo *type = NULL;
	const OrtTensorTypeAndShapeInfo *is = NULL;
	OrtStatus *status = output ? ort->KernelInfo_GetOutputTypeInfo(info, i, &type)
				   : ort->KernelInfo_GetInputTypeInfo(info, i, &type);
	if (status && output) /* "does not have a type" */
		return status_first(ort,
				    status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
					       "output %zu has no name in the graph: give it one",
					       i),
				    status);
	if (!status)
		status = ort->CastTypeInfoToTensorInfo(type, &is);
	if (!status && !is)
		status = status_new(ort, ORT_ERROR_INVALID_ARGUMENT, "%s %zu is not a tensor",
				    output ? "output" : "input", i);
	if (!status)
		status = value_describe(ort, is, tensor, dims);
	if (type)
		ort->ReleaseTypeInfo(type);
	/* The interface cannot distinguish a scalar from an unknown shape. */
	if (!status && !tensor->ndims)
		tensor->ndims = -1;
	for (int d = 0; !status && d < tensor->ndims; d++)
		dims[d] = dims[d] < 0 ? -1 : dims[d];
	return status;
}

static OrtStatus *describe_all(const OrtApi *ort, const OrtKernelInfo *info, bool output,
			       size_t first, struct values *v)
{
	size_t n = 0;
	OrtStatus *status = output ? ort->KernelInfo_GetOutputCount(info, &n)
				   : ort->KernelInfo_GetInputCount(info, &n);
	if (!status)
		status = values_make(ort, v, n > first ? n - first : 0);
	for (size_t i = 0; !status && i < v->n; i++)
		status = describe(ort, info, output, first + i, &v->tensors[i], v->dims[i]);
	if (status)
		values_free(v);
	return status;
}

/* Checks element_types, if the node has it: types in ONNX's numbering. */
static OrtStatus *check_element_types(const OrtApi *ort, const OrtKernelInfo *info,
				      const struct values *tensors)
{
	size_t n = 0;
	OrtStatus *status = ort->KernelInfoGetAttributeArray_int64(info, "element_types", NULL, &n);
	if (status)
		return check_absent(ort, info, "element_types", "a list of integers", status);
	if (n != tensors->n)
		return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				  "element_types has %zu values, but there are %zu tensors", n,
				  tensors->n);
	int64_t *types = calloc(n + 1, sizeof(*types));
	if (!types)
		return status_new(ort, ORT_ERROR_FAIL, "out of memory for %zu types", n);
	status = ort->KernelInfoGetAttributeArray_int64(info, "element_types", types, &n);
	for (size_t i = 0; !status && i < n; i++) {
		if (value_type(types[i]) == (int)tensors->tensors[i].type)
			continue;
		status = status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
				    "element_types[%zu] is %lld (%s), but the tensor's type is %s",
				    i, (long long)types[i], value_type_name(types[i]),
				    ncclsvc_type_name(tensors->tensors[i].type));
	}
	free(types);
	return status;
}

/* ---- Checks of each kind of operator ---- */

static OrtStatus *check_collective(const OrtApi *ort, const struct ort_operator *op,
				   const struct values *inputs, const OrtKernelInfo *info)
{
	size_t noutputs = 0;
	OrtStatus *status = ort->KernelInfo_GetOutputCount(info, &noutputs);
	if (!status && noutputs != inputs->n)
		status = status_new(
			ort, ORT_ERROR_INVALID_ARGUMENT,
			"there are %zu inputs and %zu outputs: each input needs an output",
			inputs->n, noutputs);
	for (size_t i = 0; !status && i < inputs->n; i++) {
		const ncclsvc_type type = inputs->tensors[i].type;
		if (!op->reduces)
			continue;
		if (!op->provider && (type == NCCLSVC_FLOAT8E4M3 || type == NCCLSVC_FLOAT8E5M2))
			status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
					    "input %zu has type %s, which is reduced only on GPUs",
					    i, ncclsvc_type_name(type));
		if (type >= NCCLSVC_BOOL)
			status = status_new(ort, ORT_ERROR_NOT_IMPLEMENTED,
					    "input %zu has type %s, which cannot be reduced", i,
					    ncclsvc_type_name(type));
	}
	return status;
}

/* A static message needs fully known shapes. */
static OrtStatus *check_static(const OrtApi *ort, struct values *outputs)
{
	for (size_t i = 0; i < outputs->n; i++) {
		ncclsvc_tensor *t = &outputs->tensors[i];
		if (t->ndims < 0)
			t->ndims = 0;
		for (int d = 0; d < t->ndims; d++)
			if (t->dims[d] < 0)
				return status_new(ort, ORT_ERROR_INVALID_ARGUMENT,
						  "dimension %d of received tensor %zu is unknown, "
						  "and shapes is 'static': declare it in the "
						  "graph, or use 'ahead' on both sides",
						  d, i);
	}
	return NULL;
}

/* All outputs are written, and ONNX Runtime provides none without a name. */
static OrtStatus *check_outputs(const OrtApi *ort, const OrtKernelInfo *info)
{
	struct values outputs = {0};
	OrtStatus *status = describe_all(ort, info, true, 0, &outputs);
	values_free(&outputs);
	return status;
}

static OrtStatus *check(struct kernel *k, const OrtKernelInfo *info)
{
	const struct ort_operator *op = k->op;
	const OrtApi *ort = k->ort;
	struct values inputs = {0};
	OrtStatus *status = check_outputs(ort, info);
	if (!status && !op->receives)
		status = describe_all(ort, info, false, operator_inputs(op), &inputs);
	if (!status && operator_is_collective(op)) {
		status = take_group(ort, info, k);
		status = status ? status : check_collective(ort, op, &inputs, info);
	} else if (!status) {
		status = take_int(ort, info, "tag", 0, &k->tag);
		status = status ? status : take_shapes(ort, info, k);
	}
	if (!status && op->receives)
		status = describe_all(ort, info, true, operator_outputs(op), &k->outputs);
	if (!status && op->receives && k->shapes == NCCLSVC_SHAPES_STATIC)
		status = check_static(ort, &k->outputs);
	if (!status && !operator_is_collective(op))
		status = check_element_types(ort, info, op->sends ? &inputs : &k->outputs);
	values_free(&inputs);
	return status;
}

static OrtStatus *find_device(struct kernel *k, const OrtKernelInfo *info)
{
	OrtAllocator *allocator = NULL;
	const OrtMemoryInfo *memory;
	k->device = NCCLSVC_DEVICE_HOST;
	if (!k->op->provider)
		return NULL;
	OrtStatus *status = k->ort->KernelInfoGetAllocator(info, ORT_MEMORY_DEFAULT, &allocator);
	if (!status)
		status = k->ort->AllocatorGetInfo(allocator, &memory);
	if (!status)
		status = k->ort->MemoryInfoGetId(memory, &k->device);
	if (allocator)
		k->ort->ReleaseAllocator(allocator);
	return status ? status : service_use_gpu(k->ort, k->device);
}

/* ---- ONNX Runtime's calls ---- */

/* ONNX Runtime does not say which node an error at load time belongs to. */
static OrtStatus *with_node(const struct kernel *k, const OrtKernelInfo *info, OrtStatus *status)
{
	char name[128] = "";
	size_t size = sizeof(name);
	OrtStatus *none = k->ort->KernelInfo_GetNodeName(info, name, &size);
	if (none)
		k->ort->ReleaseStatus(none);
	OrtStatus *whole =
		status_new(k->ort, ORT_ERROR_INVALID_ARGUMENT, "%s node %s: %s", k->op->name,
			   none ? "" : name, k->ort->GetErrorMessage(status));
	k->ort->ReleaseStatus(status);
	return whole;
}

OrtStatus *kernel_new(const OrtCustomOp *op, const OrtApi *ort, const OrtKernelInfo *info,
		      void **kernel)
{
	struct kernel *k = calloc(1, sizeof(*k));
	if (!k)
		return status_new(ort, ORT_ERROR_FAIL, "out of memory for a kernel");
	k->op = (const struct ort_operator *)op;
	k->ort = ort;
	OrtStatus *status = check(k, info);
	if (!status)
		status = find_device(k, info);
	if (!status) {
		*kernel = k;
		return NULL;
	}
	status = with_node(k, info, status);
	kernel_free(k);
	return status;
}

OrtStatus *kernel_compute(void *kernel, OrtKernelContext *context)
{
	const struct kernel *k = kernel;
	return k->op->compute(k, context);
}

void kernel_free(void *kernel)
{
	struct kernel *k = kernel;
	if (k)
		values_free(&k->outputs);
	free(k);
}
