/* SPDX-License-Identifier: Apache-2.0
 * NcclAllReduce, NcclAllGather, NcclReduceScatter: as many outputs as inputs, with the same types
 * and shapes. ONNX Runtime may give an output its input's memory; then the operation runs in place.
 */
#include "ort.h"

typedef ncclsvc_result collective_fn(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
				     const ncclsvc_tensor *outputs, size_t n,
				     ncclsvc_request **request);

static OrtStatus *outputs_like(const OrtApi *ort, OrtKernelContext *context,
			       const struct values *inputs, struct values *outputs)
{
	OrtStatus *status = values_make(ort, outputs, inputs->n);
	for (size_t i = 0; !status && i < outputs->n; i++) {
		outputs->tensors[i] = inputs->tensors[i];
		status = value_output(ort, context, i, &outputs->tensors[i]);
	}
	return status;
}

/* A refused operation still takes its turn, and the library refuses it there, so that all members
 * see the error instead of waiting. */
static OrtStatus *compute(const struct kernel *k, OrtKernelContext *context, collective_fn *run)
{
	struct values inputs = {0}, outputs = {0};
	struct turn turn;
	ncclsvc_request *request;
	OrtStatus *refusal = values_inputs(k->ort, context, 0, &inputs);
	if (!refusal)
		refusal = outputs_like(k->ort, context, &inputs, &outputs);
	OrtStatus *status = service_enter(k, context, &turn, &refusal);
	if (!status) {
		ncclsvc_tensors *lists = service_lists(&turn);
		ncclsvc_result r =
			refusal ? run(lists, NULL, NULL, 1, &request)
				: run(lists, inputs.tensors, outputs.tensors, inputs.n, &request);
		status = status_of(k->ort, r ? r : service_wait(&turn, request));
		service_leave(&turn);
	}
	status = status_first(k->ort, refusal, status);
	values_free(&inputs);
	values_free(&outputs);
	return status;
}

static ncclsvc_result all_reduce(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
				 const ncclsvc_tensor *outputs, size_t n, ncclsvc_request **request)
{
	return ncclsvc_tensors_all_reduce(lists, inputs, outputs, n, NCCLSVC_SUM,
					  NCCLSVC_NO_TIMEOUT, request);
}

static ncclsvc_result all_gather(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
				 const ncclsvc_tensor *outputs, size_t n, ncclsvc_request **request)
{
	return ncclsvc_tensors_all_gather(lists, inputs, outputs, n, NCCLSVC_NO_TIMEOUT, request);
}

static ncclsvc_result reduce_scatter(ncclsvc_tensors *lists, const ncclsvc_tensor *inputs,
				     const ncclsvc_tensor *outputs, size_t n,
				     ncclsvc_request **request)
{
	return ncclsvc_tensors_reduce_scatter(lists, inputs, outputs, n, NCCLSVC_SUM,
					      NCCLSVC_NO_TIMEOUT, request);
}

OrtStatus *all_reduce_compute(const struct kernel *k, OrtKernelContext *context)
{
	return compute(k, context, all_reduce);
}

OrtStatus *all_gather_compute(const struct kernel *k, OrtKernelContext *context)
{
	return compute(k, context, all_gather);
}

OrtStatus *reduce_scatter_compute(const struct kernel *k, OrtKernelContext *context)
{
	return compute(k, context, reduce_scatter);
}
