/* SPDX-License-Identifier: Apache-2.0
 * Send and Recv: input_signal, remote_rank and the tensors to send; output_signal and the tensors
 * received. */
#include "ort.h"

/* The inputs before the tensors. The library must refuse a false signal, because it tells the peer.
 * So if a signal is refused here, a false signal is passed on, once it is known whose turn it
 * takes. */
static OrtStatus *take(const struct kernel *k, const OrtKernelContext *context, ncclsvc_message *m,
		       OrtStatus **refusal)
{
	const void *signal, *rank;
	OrtStatus *status = value_element(k->ort, context, 1, "remote_rank", &rank);
	if (status)
		return status;
	*refusal = value_element(k->ort, context, 0, "input_signal", &signal);
	*m = (ncclsvc_message){
		.size = sizeof(*m),
		.input_signal = !*refusal && *(const bool *)signal,
		.remote_rank = *(const int64_t *)rank,
		.tag = k->tag,
		.shapes = k->shapes,
	};
	return NULL;
}

static OrtStatus *signal_done(const struct kernel *k, OrtKernelContext *context)
{
	ncclsvc_tensor signal = {.type = NCCLSVC_BOOL};
	void *stream = NULL;
	OrtStatus *status = value_output(k->ort, context, 0, &signal);
	if (status)
		return status;
	if (k->device == NCCLSVC_DEVICE_HOST) {
		*(bool *)signal.data = true;
		return NULL;
	}
	status = k->ort->KernelContext_GetGPUComputeStream(context, &stream);
	if (!status && !gpu_set_byte(stream, signal.data, true))
		status = status_new(k->ort, ORT_ERROR_FAIL,
				    "CUDA's driver did not set output_signal");
	return status;
}

/* ---- Send ---- */

OrtStatus *send_compute(const struct kernel *k, OrtKernelContext *context)
{
	ncclsvc_message message;
	struct values tensors = {0};
	struct turn turn;
	ncclsvc_request *request;
	OrtStatus *refusal, *status = take(k, context, &message, &refusal);
	if (status)
		return status;
	if (!refusal)
		refusal = values_inputs(k->ort, context, operator_inputs(k->op), &tensors);
	status = service_enter(k, context, &turn, &refusal);
	message.n = refusal ? 1 : tensors.n; /* the library refuses a list that is NULL */
	message.tensors = refusal ? NULL : tensors.tensors;
	if (!status) {
		ncclsvc_result r = ncclsvc_tensors_isend(service_lists(&turn), &message, &request);
		status = status_of(k->ort, r ? r : service_wait(&turn, request));
		service_leave(&turn);
	}
	values_free(&tensors);
	status = status_first(k->ort, refusal, status);
	return status ? status : signal_done(k, context);
}

/* ---- Recv ---- */

struct allocation {
	const struct kernel *kernel;
	OrtKernelContext *context;
	OrtStatus *status; /* the reason of a failure */
};

static ncclsvc_result allocate(ncclsvc_tensor *tensors, size_t n, void *arg)
{
	struct allocation *a = arg;
	const size_t first = operator_outputs(a->kernel->op);
	for (size_t i = 0; i < n && !a->status; i++)
		a->status = value_output(a->kernel->ort, a->context, first + i, &tensors[i]);
	return a->status ? NCCLSVC_NO_MEMORY : NCCLSVC_OK;
}

OrtStatus *recv_compute(const struct kernel *k, OrtKernelContext *context)
{
	struct allocation allocation = {.kernel = k, .context = context};
	ncclsvc_message message;
	struct turn turn;
	ncclsvc_request *request;
	OrtStatus *refusal, *status = take(k, context, &message, &refusal);
	if (status)
		return status;
	message.allocate = allocate;
	message.arg = &allocation;
	status = service_enter(k, context, &turn, &refusal);
	message.n = refusal ? 1 : k->outputs.n;
	message.tensors = refusal ? NULL : k->outputs.tensors;
	if (!status) {
		ncclsvc_result r = ncclsvc_tensors_irecv(service_lists(&turn), &message, &request);
		status = status_of(k->ort, r ? r : service_wait(&turn, request));
		status = status_first(k->ort, allocation.status, status);
		service_leave(&turn);
	}
	status = status_first(k->ort, refusal, status);
	return status ? status : signal_done(k, context);
}
