/* SPDX-License-Identifier: Apache-2.0
 * Declarations that the files of the operators share.
 *
 *   register.c         the entry that ONNX Runtime calls, and the table of operators
 *   kernel.c           a node of a graph: its attributes and types, checked when it is loaded
 *   point_to_point.c   Send and Recv
 *   collective.c       NcclAllReduce, NcclAllGather, NcclReduceScatter
 *   value.c            ONNX Runtime's tensors as ncclsvc's
 *   status.c           errors
 *   service.c          the process's session, its world and its groups
 *   environment.c      the variables that say which world
 *   background.c       joins, in a thread of their own
 *   abort.c            ends what the process waits for
 *   gpu.c              the one thing that the library does on a GPU by itself
 */
#ifndef ORT_H
#define ORT_H

#include <ncclsvc_tensors.h>
#include <time.h>

#include "ort_abi.h"

struct kernel;
struct CUstream_st;

struct ort_operator {
	OrtCustomOp custom; /* the first member: ONNX Runtime passes pointers to it */
	const char *name;
	const char *provider; /* NULL: the CPU's */
	bool sends, receives; /* otherwise a collective */
	bool reduces;
	OrtStatus *(*compute)(const struct kernel *kernel, OrtKernelContext *context);
};

static inline bool operator_is_collective(const struct ort_operator *op)
{
	return !op->sends && !op->receives;
}

/* How many inputs or outputs precede the tensors. */
static inline size_t operator_inputs(const struct ort_operator *op)
{
	return operator_is_collective(op) ? 0 : 2; /* input_signal, remote_rank */
}

static inline size_t operator_outputs(const struct ort_operator *op)
{
	return operator_is_collective(op) ? 0 : 1; /* output_signal */
}

/* ---- status.c ---- */

#define ERROR_BYTES 640 /* an error's sentence; the library's have up to about 600 bytes */

OrtStatus *status_new(const OrtApi *ort, enum ort_error code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* NULL if the result is OK; otherwise a status with the sentence of this thread's last error. */
OrtStatus *status_of(const OrtApi *ort, ncclsvc_result result);
/* Returns the first status that is not NULL and releases the other. Both may be NULL. */
OrtStatus *status_first(const OrtApi *ort, OrtStatus *first, OrtStatus *second);

/* ---- value.c ---- */

struct values {
	size_t n;
	ncclsvc_tensor *tensors;
	int64_t (*dims)[NCCLSVC_DIMS_MAX];
};

/* Allocates n tensors. */
OrtStatus *values_make(const OrtApi *ort, struct values *values, size_t n);
void values_free(struct values *values);
/* Reads the inputs, starting with number `first`. */
OrtStatus *values_inputs(const OrtApi *ort, const OrtKernelContext *context, size_t first,
			 struct values *values);
/* Allocates output i with the shape, and sets the tensor's data. */
OrtStatus *value_output(const OrtApi *ort, OrtKernelContext *context, size_t i,
			ncclsvc_tensor *tensor);
/* Reads type and shape of a tensor, whose dims must have room for NCCLSVC_DIMS_MAX. */
OrtStatus *value_describe(const OrtApi *ort, const OrtTensorTypeAndShapeInfo *info,
			  ncclsvc_tensor *tensor, int64_t *dims);
/* Reads the single element of an input in host memory, which has the type that the graph declares.
 */
OrtStatus *value_element(const OrtApi *ort, const OrtKernelContext *context, size_t i,
			 const char *name, const void **element);
/* ONNX's name of a type ("float", "string", or "?"), and its ncclsvc_type, or -1. */
const char *value_type_name(int64_t type);
int value_type(int64_t type);

/* ---- kernel.c ---- */

struct kernel {
	const struct ort_operator *op;
	const OrtApi *ort;
	int device; /* a CUDA ordinal, or NCCLSVC_DEVICE_HOST */
	int64_t tag;
	ncclsvc_group_type group;
	ncclsvc_shapes shapes;
	struct values outputs; /* Recv: the outputs' types and shapes in the graph; -1: an unknown
				  dimension or ndims */
};

OrtStatus *kernel_new(const OrtCustomOp *op, const OrtApi *ort, const OrtKernelInfo *info,
		      void **kernel);
OrtStatus *kernel_compute(void *kernel, OrtKernelContext *context);
void kernel_free(void *kernel);

/* ---- point_to_point.c, collective.c ---- */

OrtStatus *send_compute(const struct kernel *kernel, OrtKernelContext *context);
OrtStatus *recv_compute(const struct kernel *kernel, OrtKernelContext *context);
OrtStatus *all_reduce_compute(const struct kernel *kernel, OrtKernelContext *context);
OrtStatus *all_gather_compute(const struct kernel *kernel, OrtKernelContext *context);
OrtStatus *reduce_scatter_compute(const struct kernel *kernel, OrtKernelContext *context);

/* ---- service.c ---- */

/* The lists of one group. One thread uses them at a time. */
struct group;

/* An operation on a group. */
struct turn {
	struct group *group;
	unsigned mark; /* abort.c's mark from its beginning */
	bool on_gpu;
};

/* Called when a kernel of the CUDA provider is loaded: from the first operation on, the process's
 * world is on this GPU. Fails if it already is on another one, or in host memory. */
OrtStatus *service_use_gpu(const OrtApi *ort, int device);
/* Gets the group's lists for the kernel's device, with the thread's stream set to the context's.
 * The first call joins the world. Blocks while another thread uses the lists. If such a kernel
 * cannot use them, sets *refusal to the reason, unless it is already set; then the operation is
 * refused in its turn. */
OrtStatus *service_enter(const struct kernel *kernel, const OrtKernelContext *context,
			 struct turn *turn, OrtStatus **refusal);
void service_leave(const struct turn *turn);
ncclsvc_tensors *service_lists(const struct turn *turn);
/* Waits for the request, and frees it. An abort cancels it. */
ncclsvc_result service_wait(const struct turn *turn, ncclsvc_request *request);

/* Programs call this by name: after PEER_GONE or DAEMON_LOST, all surviving ranks call it, and wait
 * in it for the restarted ones. Returns an ncclsvc_result, 0 for success. Without a world it does
 * nothing. */
__attribute__((visibility("default"))) int ncclsvc_ort_rejoin(int timeout_ms);

/* ---- environment.c ---- */

/* The deadline of each operation. */
ncclsvc_result environment_timeout(int *timeout_ms);
/* The job's world, if the environment sets one, otherwise the daemon's; and the sizes of its
 * groups. */
ncclsvc_result environment_world(ncclsvc_world_options *choice);
/* Sets the last error to the sentence, plus the variables that set the options it names. Returns
 * the result. */
ncclsvc_result environment_explain(ncclsvc_result result, const char *sentence);

/* ---- background.c ---- */

typedef ncclsvc_result background_call_fn(void);

/* Runs the call, or waits for one that already runs and returns its result. CANCELLED: an abort
 * came, and the call continues. */
ncclsvc_result background_run(background_call_fn *call, unsigned mark);
bool background_runs(void);

/* ---- abort.c ---- */

#define ABORT_LOOK_MS 100 /* how often a wait checks */
#define ABORTED	      "it was aborted by Ctrl-C or ncclsvc_ort_abort"

/* Programs call this by name: operations and rejoins that are waiting, in all threads, end with
 * CANCELLED. Can be called from any thread, and in signal handlers. */
__attribute__((visibility("default"))) void ncclsvc_ort_abort(void);
/* Call at the beginning of the wait. */
unsigned abort_mark(void);
/* Whether an abort has come since. In Python's main thread, Ctrl-C counts as one. */
bool abort_came(unsigned mark);
/* When to check next, by CLOCK_MONOTONIC. */
struct timespec abort_look(void);

/* ---- gpu.c ---- */

/* Sets one byte of device memory, in stream order. False: the driver refused. */
bool gpu_set_byte(struct CUstream_st *stream, void *at, unsigned char byte);

#endif
