/* SPDX-License-Identifier: Apache-2.0
 * The part of ONNX Runtime's C interface that custom operators need, as of version 18 (ONNX
 * Runtime 1.18). OrtApi is a table of function pointers that only grows at its end, so later
 * releases have the same entries and more. Unused entries are gaps. The assertions at the end fix
 * each entry's number in the table. A function that can fail returns an OrtStatus, which the caller
 * owns; NULL means success. */
#ifndef ORT_ABI_H
#define ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION_NEEDED 18

typedef struct OrtStatus OrtStatus;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;	  /* a node while its kernel is created */
typedef struct OrtKernelContext OrtKernelContext; /* one run of a kernel */
typedef struct OrtCustomOp OrtCustomOp;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtShapeInferContext OrtShapeInferContext;

/* Codes of a status: Python raises a different exception class for each. */
enum ort_error {
	ORT_ERROR_FAIL = 1,
	ORT_ERROR_INVALID_ARGUMENT = 2,
	ORT_ERROR_NOT_IMPLEMENTED = 9,
};

/* Element types; the same numbers as ONNX's TensorProto.DataType. */
enum ort_type {
	ORT_TYPE_UNDEFINED = 0, /* for an operator's input or output: any type */
	ORT_TYPE_FLOAT = 1,
	ORT_TYPE_UINT8 = 2,
	ORT_TYPE_INT8 = 3,
	ORT_TYPE_UINT16 = 4,
	ORT_TYPE_INT16 = 5,
	ORT_TYPE_INT32 = 6,
	ORT_TYPE_INT64 = 7,
	ORT_TYPE_STRING = 8,
	ORT_TYPE_BOOL = 9,
	ORT_TYPE_FLOAT16 = 10,
	ORT_TYPE_DOUBLE = 11,
	ORT_TYPE_UINT32 = 12,
	ORT_TYPE_UINT64 = 13,
	ORT_TYPE_COMPLEX64 = 14,
	ORT_TYPE_COMPLEX128 = 15,
	ORT_TYPE_BFLOAT16 = 16,
	ORT_TYPE_FLOAT8E4M3FN = 17,
	ORT_TYPE_FLOAT8E4M3FNUZ = 18,
	ORT_TYPE_FLOAT8E5M2 = 19,
	ORT_TYPE_FLOAT8E5M2FNUZ = 20,
	ORT_TYPE_UINT4 = 21,
	ORT_TYPE_INT4 = 22,
};

enum ort_parameter { ORT_PARAMETER_REQUIRED = 0, ORT_PARAMETER_VARIADIC = 2 };
enum ort_memory { ORT_MEMORY_CPU_INPUT = -2, ORT_MEMORY_DEFAULT = 0 };

typedef struct OrtApi {
	OrtStatus *(*CreateStatus)(int code, const char *message);
	void *gap_1[1];
	const char *(*GetErrorMessage)(const OrtStatus *status);
	void *gap_3[23];
	OrtStatus *(*CreateCustomOpDomain)(const char *name, OrtCustomOpDomain **domain);
	OrtStatus *(*CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);
	OrtStatus *(*AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);
	void *gap_29[22];
	OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **data);
	void *gap_52[3];
	/* *tensor is part of info; NULL if info is not a tensor. */
	OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *info,
					       const OrtTensorTypeAndShapeInfo **tensor);
	void *gap_56[4];
	OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info, int *type);
	OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *n);
	OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t n);
	/* A name for each dimension, or "". info owns them. */
	OrtStatus *(*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *info,
					    const char **names, size_t n);
	OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *info, size_t *n);
	OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *value,
					    OrtTensorTypeAndShapeInfo **info);
	void *gap_66[6];
	OrtStatus *(*MemoryInfoGetId)(const OrtMemoryInfo *info, int *id);
	void *gap_73[4];
	OrtStatus *(*AllocatorGetInfo)(const OrtAllocator *allocator, const OrtMemoryInfo **info);
	void *gap_78[7];
	OrtStatus *(*KernelInfoGetAttribute_float)(const OrtKernelInfo *info, const char *name,
						   float *value);
	OrtStatus *(*KernelInfoGetAttribute_int64)(const OrtKernelInfo *info, const char *name,
						   int64_t *value);
	OrtStatus *(*KernelInfoGetAttribute_string)(const OrtKernelInfo *info, const char *name,
						    char *text, size_t *size);
	OrtStatus *(*KernelContext_GetInputCount)(const OrtKernelContext *context, size_t *n);
	OrtStatus *(*KernelContext_GetOutputCount)(const OrtKernelContext *context, size_t *n);
	OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *context, size_t i,
					     const OrtValue **value);
	/* Allocates the output. The context owns *value; NULL: the graph does not have this output.
	 */
	OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *context, size_t i,
					      const int64_t *dims, size_t ndims, OrtValue **value);
	void *gap_92[1];
	void (*ReleaseStatus)(OrtStatus *status);
	void *gap_94[4];
	void (*ReleaseTypeInfo)(OrtTypeInfo *info);
	void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *info);
	void *gap_100[32];
	void (*ReleaseAllocator)(OrtAllocator *allocator);
	void *gap_133[29];
	/* If values is NULL, *size becomes the number of values. */
	OrtStatus *(*KernelInfoGetAttributeArray_float)(const OrtKernelInfo *info, const char *name,
							float *values, size_t *size);
	OrtStatus *(*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo *info, const char *name,
							int64_t *values, size_t *size);
	void *gap_164[29];
	OrtStatus *(*KernelContext_GetGPUComputeStream)(const OrtKernelContext *context,
							void **stream);
	void *gap_194[36];
	OrtStatus *(*KernelInfo_GetInputCount)(const OrtKernelInfo *info, size_t *n);
	OrtStatus *(*KernelInfo_GetOutputCount)(const OrtKernelInfo *info, size_t *n);
	void *gap_232[2];
	OrtStatus *(*KernelInfo_GetInputTypeInfo)(const OrtKernelInfo *info, size_t i,
						  OrtTypeInfo **type);
	OrtStatus *(*KernelInfo_GetOutputTypeInfo)(const OrtKernelInfo *info, size_t i,
						   OrtTypeInfo **type);
	void *gap_236[8];
	OrtStatus *(*KernelInfo_GetNodeName)(const OrtKernelInfo *info, char *name, size_t *size);
	void *gap_245[22];
	OrtStatus *(*ShapeInferContext_GetInputCount)(const OrtShapeInferContext *context,
						      size_t *n);
	/* The context owns *info. */
	OrtStatus *(*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext *context,
							  size_t i,
							  OrtTensorTypeAndShapeInfo **info);
	void *gap_269[1];
	OrtStatus *(*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext *context,
							   size_t i,
							   const OrtTensorTypeAndShapeInfo *info);
	void *gap_271[7];
	OrtStatus *(*KernelInfoGetAllocator)(const OrtKernelInfo *info, int memory,
					     OrtAllocator **allocator);
} OrtApi;

typedef struct OrtApiBase {
	const OrtApi *(*GetApi)(uint32_t version); /* NULL: this release lacks that version */
	const char *(*GetVersionString)(void);
} OrtApiBase;

/* An operator for one execution provider. Its owner must keep it as long as any session refers to
 * it. */
struct OrtCustomOp {
	uint32_t version; /* version of the interface for this table */
	void *(*CreateKernel)(const OrtCustomOp *op, const OrtApi *api,
			      const OrtKernelInfo *info); /* unused: CreateKernelV2 replaces it */
	const char *(*GetName)(const OrtCustomOp *op);
	const char *(*GetExecutionProviderType)(const OrtCustomOp *op);
	int (*GetInputType)(const OrtCustomOp *op, size_t i);
	size_t (*GetInputTypeCount)(const OrtCustomOp *op);
	int (*GetOutputType)(const OrtCustomOp *op, size_t i);
	size_t (*GetOutputTypeCount)(const OrtCustomOp *op);
	void (*KernelCompute)(void *kernel, OrtKernelContext *context); /* unused as well */
	void (*KernelDestroy)(void *kernel);
	int (*GetInputCharacteristic)(const OrtCustomOp *op, size_t i);
	int (*GetOutputCharacteristic)(const OrtCustomOp *op, size_t i);
	int (*GetInputMemoryType)(const OrtCustomOp *op, size_t i);
	int (*GetVariadicInputMinArity)(const OrtCustomOp *op);
	int (*GetVariadicInputHomogeneity)(const OrtCustomOp *op);
	int (*GetVariadicOutputMinArity)(const OrtCustomOp *op);
	int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *op);
	OrtStatus *(*CreateKernelV2)(const OrtCustomOp *op, const OrtApi *api,
				     const OrtKernelInfo *info, void **kernel);
	OrtStatus *(*KernelComputeV2)(void *kernel, OrtKernelContext *context);
	OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *op, OrtShapeInferContext *);
	int (*GetStartVersion)(const OrtCustomOp *op);
	int (*GetEndVersion)(const OrtCustomOp *op);
	/* Returns the number of pairs of an input and an output that may share memory. */
	size_t (*GetMayInplace)(int **inputs, int **outputs);
	void (*ReleaseMayInplace)(int *inputs, int *outputs);
	size_t (*GetAliasMap)(int **inputs, int **outputs);
	void (*ReleaseAliasMap)(int *inputs, int *outputs);
};

#define ORT_ENTRY(number, name)                                                                    \
	_Static_assert(offsetof(OrtApi, name) == (number) * sizeof(void *), #name)
ORT_ENTRY(0, CreateStatus);
ORT_ENTRY(2, GetErrorMessage);
ORT_ENTRY(26, CreateCustomOpDomain);
ORT_ENTRY(27, CustomOpDomain_Add);
ORT_ENTRY(28, AddCustomOpDomain);
ORT_ENTRY(51, GetTensorMutableData);
ORT_ENTRY(55, CastTypeInfoToTensorInfo);
ORT_ENTRY(60, GetTensorElementType);
ORT_ENTRY(61, GetDimensionsCount);
ORT_ENTRY(62, GetDimensions);
ORT_ENTRY(63, GetSymbolicDimensions);
ORT_ENTRY(64, GetTensorShapeElementCount);
ORT_ENTRY(65, GetTensorTypeAndShape);
ORT_ENTRY(72, MemoryInfoGetId);
ORT_ENTRY(77, AllocatorGetInfo);
ORT_ENTRY(85, KernelInfoGetAttribute_float);
ORT_ENTRY(86, KernelInfoGetAttribute_int64);
ORT_ENTRY(87, KernelInfoGetAttribute_string);
ORT_ENTRY(88, KernelContext_GetInputCount);
ORT_ENTRY(89, KernelContext_GetOutputCount);
ORT_ENTRY(90, KernelContext_GetInput);
ORT_ENTRY(91, KernelContext_GetOutput);
ORT_ENTRY(93, ReleaseStatus);
ORT_ENTRY(98, ReleaseTypeInfo);
ORT_ENTRY(99, ReleaseTensorTypeAndShapeInfo);
ORT_ENTRY(132, ReleaseAllocator);
ORT_ENTRY(162, KernelInfoGetAttributeArray_float);
ORT_ENTRY(163, KernelInfoGetAttributeArray_int64);
ORT_ENTRY(193, KernelContext_GetGPUComputeStream);
ORT_ENTRY(230, KernelInfo_GetInputCount);
ORT_ENTRY(231, KernelInfo_GetOutputCount);
ORT_ENTRY(234, KernelInfo_GetInputTypeInfo);
ORT_ENTRY(235, KernelInfo_GetOutputTypeInfo);
ORT_ENTRY(244, KernelInfo_GetNodeName);
ORT_ENTRY(267, ShapeInferContext_GetInputCount);
ORT_ENTRY(268, ShapeInferContext_GetInputTypeShape);
ORT_ENTRY(270, ShapeInferContext_SetOutputTypeShape);
ORT_ENTRY(278, KernelInfoGetAllocator);

#endif
