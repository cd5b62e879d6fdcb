/* SPDX-License-Identifier: Apache-2.0
 * The operators Send, Recv, NcclAllReduce, NcclAllGather and NcclReduceScatter of the domain
 * com.microsoft, each for the CPU and the CUDA execution provider. Here a tensor may have any type:
 * ONNX Runtime selects the kernel by provider only, and kernel.c refuses types that ncclsvc does
 * not have. */
#include <stdio.h>

#include "ort.h"

#define DOMAIN "com.microsoft"
#define CUDA   "CUDAExecutionProvider"

#define CHECKS_OUTPUTS 30 /* ONNX Runtime 1.30 does; 1.27 does not */

static const OrtApi *api;   /* for callbacks that get no OrtApi */
static bool checks_outputs; /* it rejects the shape of an output that a node does not have */

static const struct ort_operator *own(const OrtCustomOp *op)
{
	return (const struct ort_operator *)op;
}

static const char *name_of(const OrtCustomOp *op)
{
	return own(op)->name;
}

static const char *provider_of(const OrtCustomOp *op)
{
	return own(op)->provider;
}

/* ---- Inputs and outputs ---- */

static size_t inputs_of(const OrtCustomOp *op)
{
	return operator_inputs(own(op)) + !own(op)->receives;
}

static size_t outputs_of(const OrtCustomOp *op)
{
	return operator_outputs(own(op)) + !own(op)->sends;
}

static int input_type(const OrtCustomOp *op, size_t i)
{
	if (i >= operator_inputs(own(op)))
		return ORT_TYPE_UNDEFINED;
	return i ? ORT_TYPE_INT64 : ORT_TYPE_BOOL;
}

static int output_type(const OrtCustomOp *op, size_t i)
{
	return i >= operator_outputs(own(op)) ? ORT_TYPE_UNDEFINED : ORT_TYPE_BOOL;
}

static int input_parameter(const OrtCustomOp *op, size_t i)
{
	return i >= operator_inputs(own(op)) ? ORT_PARAMETER_VARIADIC : ORT_PARAMETER_REQUIRED;
}

static int output_parameter(const OrtCustomOp *op, size_t i)
{
	return i >= operator_outputs(own(op)) ? ORT_PARAMETER_VARIADIC : ORT_PARAMETER_REQUIRED;
}

static int input_memory(const OrtCustomOp *op, size_t i)
{
	return i >= operator_inputs(own(op)) ? ORT_MEMORY_DEFAULT : ORT_MEMORY_CPU_INPUT;
}

static int at_least_one(const OrtCustomOp *op)
{
	(void)op;
	return 1;
}

/* Messages can mix tensor types, collectives cannot. */
static int one_type(const OrtCustomOp *op)
{
	return operator_is_collective(own(op));
}

static int first_version(const OrtCustomOp *op)
{
	(void)op;
	return 1;
}

/* ---- Shapes ---- */

/* ONNX Runtime treats a dimension without a value or a name as -1. */
static OrtStatus *is_named(const OrtTensorTypeAndShapeInfo *info, bool *named)
{
	int64_t dims[NCCLSVC_DIMS_MAX];
	const char *names[NCCLSVC_DIMS_MAX];
	size_t n = 0;
	*named = false;
	OrtStatus *status = api->GetDimensionsCount(info, &n);
	if (status || !n || n > NCCLSVC_DIMS_MAX)
		return status;
	status = api->GetDimensions(info, dims, n);
	if (!status)
		status = api->GetSymbolicDimensions(info, names, n);
	*named = !status;
	for (size_t i = 0; *named && i < n; i++)
		*named = dims[i] >= 0 || *names[i];
	return status;
}

static OrtStatus *infer_shape(OrtShapeInferContext *context, size_t i)
{
	OrtTensorTypeAndShapeInfo *info;
	bool named = false;
	OrtStatus *status = api->ShapeInferContext_GetInputTypeShape(context, i, &info);
	if (!status)
		status = is_named(info, &named);
	if (!status && named)
		status = api->ShapeInferContext_SetOutputTypeShape(context, i, info);
	return status;
}

/* A collective's outputs have its inputs' shapes. An input without dimensions says nothing: it is a
 * scalar, or its shape is unknown. The interface does not tell how many outputs the node has, and
 * older releases write past the end of their list for the shape of a missing output; they get only
 * the first output's shape, which every node has. */
static OrtStatus *infer_shapes(const OrtCustomOp *op, OrtShapeInferContext *context)
{
	size_t n = 0;
	if (!operator_is_collective(own(op)))
		return NULL;
	OrtStatus *status = api->ShapeInferContext_GetInputCount(context, &n);
	if (!checks_outputs && n > 1)
		n = 1;
	for (size_t i = 0; !status && i < n; i++)
		status = infer_shape(context, i);
	return status;
}

/* ---- Outputs in the memory of inputs ---- */

#define PAIRS 256 /* with more tensors than this, outputs have their own memory */

static size_t in_place(int **inputs, int **outputs)
{
	static int numbers[PAIRS];
	for (int i = 0; i < PAIRS; i++)
		numbers[i] = i;
	*inputs = *outputs = numbers;
	return PAIRS;
}

static void in_place_done(int *inputs, int *outputs)
{
	(void)inputs;
	(void)outputs;
}

/* ---- The table ---- */

#define CALLBACKS                                                                                  \
	.version = ORT_VERSION_NEEDED, .GetName = name_of,                                         \
	.GetExecutionProviderType = provider_of, .GetInputType = input_type,                       \
	.GetInputTypeCount = inputs_of, .GetOutputType = output_type,                              \
	.GetOutputTypeCount = outputs_of, .KernelDestroy = kernel_free,                            \
	.GetInputCharacteristic = input_parameter, .GetOutputCharacteristic = output_parameter,    \
	.GetInputMemoryType = input_memory, .GetVariadicInputMinArity = at_least_one,              \
	.GetVariadicInputHomogeneity = one_type, .GetVariadicOutputMinArity = at_least_one,        \
	.GetVariadicOutputHomogeneity = one_type, .CreateKernelV2 = kernel_new,                    \
	.KernelComputeV2 = kernel_compute, .InferOutputShapeFn = infer_shapes,                     \
	.GetStartVersion = first_version

#define IN_PLACE .GetMayInplace = in_place, .ReleaseMayInplace = in_place_done

#define ON(where)                                                                                  \
	{{CALLBACKS}, "Send", where, true, false, false, send_compute},                            \
		{{CALLBACKS}, "Recv", where, false, true, false, recv_compute},                    \
		{{CALLBACKS, IN_PLACE}, "NcclAllReduce", where, false, false, true,                \
		 all_reduce_compute},                                                              \
		{{CALLBACKS, IN_PLACE}, "NcclAllGather", where, false, false, false,               \
		 all_gather_compute},                                                              \
	{                                                                                          \
		{CALLBACKS, IN_PLACE}, "NcclReduceScatter", where, false, false, true,             \
			reduce_scatter_compute                                                     \
	}

static const struct ort_operator operators[] = {ON(NULL), ON(CUDA)};
#define OPERATORS (sizeof(operators) / sizeof(operators[0]))

/* ---- The entry ---- */

/* Checks the release by its name, because ONNX Runtime prints an error when asked for an interface
 * that it lacks. */
static bool is_release(const OrtApiBase *base, unsigned minor)
{
	unsigned have[2] = {0};
	return sscanf(base->GetVersionString(), "%u.%u", &have[0], &have[1]) == 2 &&
	       (have[0] > 1 || have[1] >= minor);
}

/* The domain is never freed, because every session created with these options uses it. */
static OrtStatus *add_domain(const OrtApi *ort, OrtSessionOptions *options)
{
	OrtCustomOpDomain *domain;
	OrtStatus *status = ort->CreateCustomOpDomain(DOMAIN, &domain);
	for (size_t i = 0; !status && i < OPERATORS; i++)
		status = ort->CustomOpDomain_Add(domain, &operators[i].custom);
	return status ? status : ort->AddCustomOpDomain(options, domain);
}

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options,
								    const OrtApiBase *base)
{
	const OrtApi *ort = base->GetApi(ORT_VERSION_NEEDED);
	if (!ort) {
		const OrtApi *old =
			base->GetApi(1); /* CreateStatus exists since the first version */
		return status_new(old, ORT_ERROR_NOT_IMPLEMENTED,
				  "this is ONNX Runtime %s, but the operators need 1.%d or later",
				  base->GetVersionString(), ORT_VERSION_NEEDED);
	}
	api = ort;
	checks_outputs = is_release(base, CHECKS_OUTPUTS);
	return add_domain(ort, options);
}
