/* SPDX-License-Identifier: Apache-2.0
 * Tests of the libcuda stand-in: the direct transport's kernels, loaded from the data in the
 * library. The arguments are the kernels' PTX files: for few bytes, for many bytes, and for
 * messages. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "kernels/image.h"
#include "kernels/variant.h"
#include "proto/abi/peer_abi.h"
#include "proto/cuda_driver.h"
#include "proto/fdio.h"
#include "proto/ncclsvc_types.h"

#define ROUNDS	  1000
#define REPLAYS	  20
#define BYTES_MAX 700
#define BUFFER	  (BYTES_MAX * PROCESSES_MAX + 64)
#define GUARD	  0xa5
#define THREADS	  64
#define ALL(n)	  ((uint8_t)((1u << (n)) - 1))
#define ABOVE(v)  ((uint32_t)((v) >> 32))

static struct cuda cuda;

/* Collectives have one kernel for few bytes and one for many. */
enum which { FEW, MANY, COLLECTIVES, MESSAGES = COLLECTIVES, KERNELS };
static const char *const names[KERNELS][PEER_VARIANTS] = {
	{"ncclsvc_peer_collective"}, PEER_DIRECT_NAMES, {"ncclsvc_peer_messages"}};
static const char *ptx_paths[KERNELS];
static CUfunction kernels[KERNELS][PEER_VARIANTS];

/* ---- A communicator ---- */

struct comm {
	struct peer_control *control;
	unsigned rank, n;
	uint64_t staging[PROCESSES_MAX];
	CUstream stream;
	CUdeviceptr src, dst;
	uint8_t in[BUFFER], out[BUFFER];
};

static void *host(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

static struct peer_control *control_of(struct ranks *ranks, unsigned comm, unsigned rank)
{
	return (struct peer_control *)(void *)(ranks->scratch +
					       (comm * PROCESSES_MAX + rank) * PEER_CONTROL_BYTES);
}

static char *ptx_read(const char *path)
{
	FILE *file = fopen(path, "r");
	CHECK(file);
	const size_t room = (size_t)16 << 20;
	char *text = calloc(1, room);
	CHECK(text);
	const size_t got = fread(text, 1, room - 1, file);
	CHECK(got > 0 && got < room - 1);
	fclose(file);
	return text;
}

static void kernel_load(const void *image, enum which i)
{
	CUmodule module;
	CUfunction other;
	OK(cuda.cuModuleLoadData(&module, image));
	for (unsigned v = 0; v < PEER_VARIANTS && names[i][v]; v++) {
		OK(cuda.cuModuleGetFunction(&kernels[i][v], module, names[i][v]));
		OK(cuda.cuFuncLoad(kernels[i][v]));
	}
	CHECK_EQ(cuda.cuModuleGetFunction(&other, module, names[!i][0]), CUDA_ERROR_NOT_FOUND);
	CHECK_EQ(cuda.cuModuleGetFunction(&other, module, "ncclsvc_peer"), CUDA_ERROR_NOT_FOUND);
	CHECK_EQ(cuda.cuModuleGetFunction(&other, module, "peer_direct"), CUDA_ERROR_NOT_FOUND);
	CHECK_EQ(cuda.cuModuleGetFunction(&other, module, ""), CUDA_ERROR_NOT_FOUND);
}

static uint64_t staging_map(CUmemGenericAllocationHandle handle, unsigned device)
{
	CUdeviceptr p;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, (int)device},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAddressReserve(&p, PEER_STAGING, 0, 0, 0));
	OK(cuMemMap(p, PEER_STAGING, 0, handle, 0));
	OK(cuMemSetAccess(p, PEER_STAGING, &access, 1));
	OK(cuMemRelease(handle));
	return p;
}

/* Every process calls this function for its own GPU. */
static void staging_exchange(struct ranks *ranks, struct comm *c)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .requestedHandleTypes =
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)c->rank}};
	CUmemGenericAllocationHandle handle;
	int fd;
	OK(cuMemCreate(&handle, PEER_STAGING, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	c->staging[c->rank] = staging_map(handle, c->rank);
	OK(cuMemsetD8Async(c->staging[c->rank], 0, PEER_STAGING, NULL)); /* may be dirty */
	OK(cuCtxSynchronize());
	const uint8_t own = (uint8_t)c->rank;
	for (unsigned p = 0; p < c->n; p++)
		if (p != c->rank)
			OK(svc_send(ranks->socks[p][1], &own, 1, &fd, 1, 0));
	close(fd);
	for (unsigned left = c->n - 1; left; left--) {
		uint8_t from;
		unsigned nfds;
		CHECK_EQ(svc_recv(ranks->socks[c->rank][0], &from, 1, &fd, &nfds, 0), 1);
		OK(cuMemImportFromShareableHandle(&handle, host((CUdeviceptr)fd), 1));
		close(fd);
		c->staging[from] = staging_map(handle, c->rank);
	}
	ranks_barrier(ranks, (int)c->n);
}

static struct comm *comm_make(struct ranks *ranks, unsigned number, unsigned rank, unsigned n)
{
	static struct comm comms[2];
	struct comm *c = &comms[number];
	c->control = control_of(ranks, number, rank);
	c->rank = rank;
	c->n = n;
	c->stream = stream_open();
	c->src = gpu_alloc(BUFFER);
	c->dst = gpu_alloc(BUFFER);
	staging_exchange(ranks, c);
	return c;
}

static void process_open(struct ranks *ranks, int rank)
{
	char why[256];
	int version;
	gpu_open(rank);
	OK(cuMemHostRegister(ranks->scratch, sizeof(ranks->scratch), CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(cuda_driver_load(&cuda, &version, why, sizeof(why)));
	kernel_load(ncclsvc_peer_collective_image, FEW);
	kernel_load(ncclsvc_peer_direct_image, MANY);
	kernel_load(ncclsvc_peer_messages_image, MESSAGES);
}

/* ---- Modules ---- */

static void modules(struct ranks *ranks, int rank)
{
	CUmodule module;
	process_open(ranks, rank);
	for (unsigned i = 0; i < KERNELS; i++) {
		char *text = ptx_read(ptx_paths[i]);
		kernel_load(text, i);
		free(text);
	}
	CHECK(ncclsvc_peer_collective_image_size > 1000 && ncclsvc_peer_direct_image_size > 1000 &&
	      ncclsvc_peer_messages_image_size > 1000);
	CHECK_EQ(ncclsvc_peer_collective_image[ncclsvc_peer_collective_image_size], 0);
	CHECK_EQ(cuda.cuModuleLoadData(&module, ".entry without a version"),
		 CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuda.cuModuleLoadData(&module, ""), CUDA_ERROR_INVALID_VALUE);
}

static void modules_test(void **state)
{
	(void)state;
	ranks_run(1, modules, -1);
}

/* ---- Operations ---- */

static struct peer_call call_of(const struct comm *c, uint64_t bytes)
{
	struct peer_call call = {
		.control = (uintptr_t)c->control,
		.src = c->src,
		.dst = c->dst,
		.bytes = bytes,
		.header = bytes,
		.from_past = (uint8_t)c->n,
		.to_past = (uint8_t)c->n,
		.segment = peer_segment(bytes, c->n),
		.rank = (uint8_t)c->rank,
		.nranks = (uint8_t)c->n,
		.sends_to = ALL(c->n),
		.receives_from = ALL(c->n),
		.type = NCCLSVC_UINT8,
		.channels = (uint8_t)(c->n > 1 ? PEER_CHANNELS_OF(PEER_BLOCKS, c->n) : 1),
		.redop = NCCLSVC_SUM};
	memcpy(call.staging, c->staging, sizeof(c->staging));
	return call;
}

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SHAPES };

static struct peer_call shape(struct peer_call call, unsigned shape, unsigned root)
{
	call.reduces = shape == ALL_REDUCE || shape == REDUCE_SCATTER;
	call.src_each = shape == REDUCE_SCATTER || shape == ALL_TO_ALL ? call.bytes : 0;
	call.dst_each = shape == ALL_GATHER || shape == ALL_TO_ALL ? call.bytes : 0;
	call.parts = (uint8_t)((call.src_each ? PEER_PART_FOR_EACH : 0) |
			       (call.dst_each ? PEER_PART_OF_EACH : 0));
	if (shape == BROADCAST) {
		call.from = (uint8_t)root;
		call.from_past = (uint8_t)(root + 1);
		call.sends_to = call.rank == root ? call.sends_to : 0;
		call.receives_from = (uint8_t)(1u << root);
	}
	call.header |= (uint64_t)shape << 32 | (uint64_t)root << 40;
	return call;
}

static CUresult launch_blocks(const struct comm *c, enum which kernel, unsigned blocks,
			      struct peer_call *call)
{
	void *parameters[] = {call};
	CUresult error =
		cuda.cuLaunchKernel(kernels[kernel][kernel == MANY ? peer_variant_of(call) : 0],
				    blocks, 1, 1, THREADS, 1, 1, 0, c->stream, parameters, NULL);
	memset(call, 0xff, sizeof(*call)); /* the launch has already read the parameters */
	return error;
}

static CUresult launch(const struct comm *c, enum which kernel, struct peer_call *call)
{
	return launch_blocks(c, kernel, 1, call);
}

static uint8_t input(unsigned rank, uint64_t i, unsigned round)
{
	return (uint8_t)(rank * 31 + i * 7 + round);
}

static void input_fill(struct comm *c, unsigned round)
{
	for (unsigned i = 0; i < BUFFER; i++)
		c->in[i] = input(c->rank, i, round);
	OK(cuMemcpyHtoDAsync(c->src, c->in, BUFFER, c->stream));
	OK(cuMemsetD8Async(c->dst, GUARD, BUFFER, c->stream));
}

static uint8_t expected(const struct peer_call *call, unsigned root, uint64_t i, unsigned round)
{
	const uint64_t from = call->rank * call->src_each;
	if (!call->reduces)
		return input(call->dst_each ? (unsigned)(i / call->bytes) : root,
			     from + i % call->bytes, round);
	uint8_t sum = 0;
	for (unsigned p = 0; p < call->nranks; p++)
		sum = (uint8_t)(sum + input(p, from + i, round));
	return sum;
}

/* Checks the output at the call's dst. */
static void output_check(struct comm *c, const struct peer_call *call, unsigned root,
			 unsigned round)
{
	const uint64_t bytes = call->dst_each ? call->bytes * c->n : call->bytes;
	OK(cuMemcpyDtoHAsync(c->out, call->dst, bytes + 1, c->stream));
	OK(cuStreamSynchronize(c->stream));
	CHECK_EQ(c->control->failed, 0);
	for (uint64_t i = 0; i < bytes; i++)
		CHECK_EQ(c->out[i], expected(call, root, i, round));
	CHECK_EQ(c->out[bytes], GUARD);
}

/* ---- Eager ---- */

/* Checks that each block has ended and, if the call posts it, that the kernel has. */
static void ended_check(struct comm *c, const struct peer_call *call, unsigned blocks)
{
	const struct peer_state *state = host(c->staging[c->rank]);
	for (unsigned i = 0; i < blocks; i++)
		CHECK_EQ(state->ended[i], state->launch_seq);
	if (call->posts)
		CHECK_EQ(c->control->ended, (uint64_t)call->kernel_seq << 32 | state->launch_seq);
}

static void eager(struct ranks *ranks, int rank, unsigned n)
{
	process_open(ranks, rank);
	struct comm *c = comm_make(ranks, 0, (unsigned)rank, n);
	unsigned seed = n;
	for (unsigned round = 0; round < ROUNDS; round++) {
		const enum which kernel = (unsigned)rand_r(&seed) % COLLECTIVES;
		struct peer_call call = call_of(c, 1 + (unsigned)rand_r(&seed) % BYTES_MAX);
		const unsigned root = (unsigned)rand_r(&seed) % n;
		call.src += (unsigned)rand_r(&seed) % 16;
		call = shape(call, (unsigned)rand_r(&seed) % SHAPES, root);
		call.posts = rand_r(&seed) & 1;
		call.kernel_seq = round;
		const unsigned blocks = 1 + (unsigned)rand_r(&seed) % PEER_BLOCKS;
		const unsigned shift = (unsigned)(call.src - c->src);
		input_fill(c, round);
		struct peer_call given = call;
		OK(launch_blocks(c, kernel, blocks, &given));
		output_check(c, &call, root, round + 7 * shift);
		ended_check(c, &call, blocks);
	}
	ranks_barrier(ranks, (int)n);
}

static void eager2(struct ranks *ranks, int rank)
{
	eager(ranks, rank, 2);
}

static void eager4(struct ranks *ranks, int rank)
{
	eager(ranks, rank, 4);
}

static void eager_test(void **state)
{
	(void)state;
	ranks_run(2, eager2, -1);
	ranks_run(4, eager4, -1);
}

/* ---- Captured ---- */

#define CAPTURED      50
#define CAPTURED_EACH 50 /* bytes for all ranks' parts and a guard */

/* Captures consecutive collectives with separate outputs. */
static CUgraph capture(struct comm *c, struct peer_call *calls)
{
	CUgraph graph;
	OK(cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	for (unsigned i = 0; i < CAPTURED; i++) {
		calls[i] = shape(call_of(c, 20 + i % 5), i % SHAPES, 1);
		calls[i].dst += i * CAPTURED_EACH;
		struct peer_call given = calls[i];
		OK(launch(c, i % COLLECTIVES, &given));
	}
	OK(cuStreamEndCapture(c->stream, &graph));
	return graph;
}

/* Launches one collective without a graph, into the first captured output. Returns 1. */
static unsigned eager_first(struct comm *c, unsigned round)
{
	struct peer_call call = call_of(c, 20);
	call.reduces = 1;
	const struct peer_call given = call;
	OK(launch(c, round % COLLECTIVES, &call));
	output_check(c, &given, 0, round);
	return 1;
}

static void captured(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm *c = comm_make(ranks, 0, (unsigned)rank, 2);
	struct peer_call calls[CAPTURED];
	CUgraphExec execs[2];
	CUgraph graph = capture(c, calls);
	for (unsigned i = 0; i < 2; i++)
		OK(cuGraphInstantiateWithFlags(&execs[i], graph, 0));
	OK(cuGraphDestroy(graph));
	CHECK_EQ(((struct peer_state *)host(c->staging[rank]))->launch_seq, 0);
	unsigned launched = 0;
	for (unsigned replay = 0; replay < REPLAYS; replay++) {
		input_fill(c, replay);
		if (replay % 3 == 1)
			launched += eager_first(c, replay);
		OK(cuGraphLaunch(execs[replay % 2], c->stream));
		launched += CAPTURED;
		if (replay % 4 == 2)
			launched += eager_first(c, replay);
		for (unsigned i = 0; i < CAPTURED; i++)
			output_check(c, &calls[i], 1, replay);
	}
	CHECK_EQ(((struct peer_state *)host(c->staging[rank]))->launch_seq, launched);
	OK(cuGraphExecDestroy(execs[0]));
	OK(cuGraphExecDestroy(execs[1]));
	ranks_barrier(ranks, 2);
}

static void captured_test(void **state)
{
	(void)state;
	ranks_run(2, captured, -1);
}

/* A Send to the other rank and a Recv of the same size from it. */
static void exchange(const struct comm *c, uint64_t from, uint64_t to, uint64_t bytes)
{
	const unsigned other = 1 - c->rank,
		       peer_dirs[] = {PEER_DIR_TO(other), PEER_DIR_FROM(other)};
	struct peer_messages m = {.call = call_of(c, 0)};
	for (unsigned i = 0; i < 2; i++) {
		m.block[i] = PEER_BLOCK_OF(peer_dirs[i], 0);
		m.parts[i].at = i ? c->dst + to : c->src + from;
		m.parts[i].header = peer_message(NCCLSVC_UINT8, bytes);
	}
	for (unsigned peer_dir = 0; peer_dir <= PEER_DIRS; peer_dir++)
		m.first[peer_dir] =
			(uint8_t)((peer_dir > peer_dirs[0]) + (peer_dir > peer_dirs[1]));
	void *parameters[] = {&m};
	OK(cuda.cuLaunchKernel(kernels[MESSAGES][0], 2, 1, 1, THREADS, 1, 1, 0, c->stream,
			       parameters, NULL));
}

/* Messages of i + 1 bytes from offset i, received one after the other. */
#define EXCHANGES 20

static void exchanges(const struct comm *c)
{
	for (uint64_t i = 0, to = 0; i < EXCHANGES; to += ++i)
		exchange(c, i, to, i + 1);
}

static void exchanges_check(struct comm *c, unsigned round)
{
	OK(cuMemcpyDtoHAsync(c->out, c->dst, BUFFER, c->stream));
	OK(cuStreamSynchronize(c->stream));
	CHECK_EQ(c->control->failed, 0);
	const uint8_t *at = c->out;
	for (uint64_t i = 0; i < EXCHANGES; i++)
		for (uint64_t k = 0; k <= i; k++)
			CHECK_EQ(*at++, input(1 - c->rank, i + k, round));
	CHECK_EQ(*at, GUARD);
}

/* Messages replayed by a graph and sent without one, with a collective before each round. */
static void captured_messages(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm *c = comm_make(ranks, 0, (unsigned)rank, 2);
	CUgraph graph;
	CUgraphExec exec;
	OK(cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	exchanges(c);
	OK(cuStreamEndCapture(c->stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned round = 0; round < REPLAYS; round++) {
		input_fill(c, round);
		eager_first(c, round);
		if (round % 3)
			OK(cuGraphLaunch(exec, c->stream));
		else
			exchanges(c);
		exchanges_check(c, round);
	}
	ranks_barrier(ranks, 2);
}

static void captured_messages_test(void **state)
{
	(void)state;
	ranks_run(2, captured_messages, -1);
}

/* ---- Graphs built without capture ---- */

static void call_is(CUgraphNode node, const struct peer_call *call)
{
	CUDA_KERNEL_NODE_PARAMS params;
	OK(cuGraphKernelNodeGetParams(node, &params));
	CHECK(params.func == kernels[FEW][0] && params.gridDimX == 1 &&
	      params.blockDimX == THREADS);
	CHECK(memcmp(params.kernelParams[0], call, sizeof(*call)) == 0);
}

/* A node with a captured node's parameters except for the output. An update of the executable graph
 * then changes the output again. */
static void by_hand(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm *c = comm_make(ranks, 0, (unsigned)rank, 2);
	struct peer_call calls[3] = {shape(call_of(c, 40), ALL_REDUCE, 0)};
	CUgraph captured, graph;
	CUgraphNode node;
	CUgraphExec exec;
	CUDA_KERNEL_NODE_PARAMS params;
	size_t n = 1;
	struct peer_call given = calls[0];
	OK(cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(launch(c, FEW, &given));
	OK(cuStreamEndCapture(c->stream, &captured));
	OK(cuGraphGetNodes(captured, &node, &n));
	call_is(node, &calls[0]);
	OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY,
					 &(CUlaunchAttributeValue){.pad = {0}}));
	OK(cuGraphKernelNodeGetParams(node, &params));
	params.kernelParams = (void *[]){&given};
	given = calls[1] = calls[0];
	given.dst = calls[1].dst += 100;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
	call_is(node, &calls[1]);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	input_fill(c, 1);
	OK(cuGraphLaunch(exec, c->stream));
	output_check(c, &calls[1], 0, 1);
	given = calls[2] = calls[0];
	given.dst = calls[2].dst += 200;
	OK(cuGraphExecKernelNodeSetParams(exec, node, &params));
	call_is(node, &calls[1]);
	input_fill(c, 2);
	OK(cuGraphLaunch(exec, c->stream));
	output_check(c, &calls[2], 0, 2);
	params.gridDimX = 0;
	CHECK_EQ(cuGraphExecKernelNodeSetParams(exec, node, &params), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGraphAddKernelNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
	ranks_barrier(ranks, 2);
}

static void by_hand_test(void **state)
{
	(void)state;
	ranks_run(2, by_hand, -1);
}

/* ---- Two communicators ---- */

/* The ranks launch the two communicators in opposite orders, so one kernel waits while the other
 * runs. */
static void two_communicators(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm *comms[2];
	for (unsigned i = 0; i < 2; i++)
		comms[i] = comm_make(ranks, i, (unsigned)rank, 2);
	struct peer_call a = call_of(comms[0], 64), b = call_of(comms[1], 64);
	if (rank == 0)
		OK(launch(comms[0], FEW, &a));
	OK(launch(comms[1], MANY, &b));
	OK(cuStreamSynchronize(comms[1]->stream));
	if (rank == 0)
		CHECK_EQ(cuStreamQuery(comms[0]->stream), CUDA_ERROR_NOT_READY);
	ranks_barrier(ranks, 2);
	if (rank == 1)
		OK(launch(comms[0], FEW, &a));
	OK(cuStreamSynchronize(comms[0]->stream));
	CHECK_EQ(comms[0]->control->failed | comms[1]->control->failed, 0);
	ranks_barrier(ranks, 2);
}

static void two_communicators_test(void **state)
{
	(void)state;
	ranks_run(2, two_communicators, -1);
}

/* ---- A peer that dies ---- */

#define MORTALS 3

static bool waits(void *control)
{
	return atomic_load_explicit(&((struct peer_control *)control)->begun, memory_order_acquire);
}

static void peer_killed(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm *c = comm_make(ranks, 0, (unsigned)rank, MORTALS);
	struct peer_call call = call_of(c, 640);
	call.reduces = 1;
	call.kernel_seq = 7;
	if (rank == MORTALS - 1) {
		for (unsigned p = 0; p < MORTALS - 1; p++)
			CHECK(soon(waits, control_of(ranks, 0, p)));
		atomic_store(&ranks->step, 1);
		raise(SIGKILL);
	}
	OK(launch(c, FEW, &call));
	ranks_wait(ranks, 1);
	snooze(20);
	CHECK_EQ(cuStreamQuery(c->stream), CUDA_ERROR_NOT_READY);
	atomic_store_explicit(&c->control->abort, 1, memory_order_release);
	OK(cuStreamSynchronize(c->stream));
	CHECK_EQ(ABOVE(c->control->failed), PEER_ABORTED);
	CHECK_EQ(ABOVE(c->control->ended), 7);
	gpu_alloc(8); /* the context is still usable */
}

static void peer_killed_test(void **state)
{
	(void)state;
	ranks_run(MORTALS, peer_killed, MORTALS - 1);
}

/* ---- Unmapped addresses ---- */

/* Each process runs alone, with its own communicator. */
static void wrong_address(struct ranks *ranks, int rank)
{
	char stack[64] = "";
	process_open(ranks, rank);
	ranks_barrier(ranks, PROCESSES_MAX);
	static struct comm comm;
	struct comm *c = &comm;
	comm = (struct comm){.control = control_of(ranks, 0, (unsigned)rank),
			     .n = 1,
			     .stream = stream_open(),
			     .src = gpu_alloc(64),
			     .dst = gpu_alloc(64)};
	c->staging[0] = gpu_alloc(PEER_OFFERS); /* enough for few bytes */
	struct peer_call call = call_of(c, 64);
	OK(launch(c, FEW, &call));
	OK(cuStreamSynchronize(c->stream));
	call = call_of(c, 64);
	if (rank == 0)
		call.src = (uintptr_t)stack;
	else if (rank == 1)
		call.dst += 8192;
	else if (rank == 2)
		call.control = (uintptr_t)stack;
	OK(launch(c, rank < 3 ? FEW : MANY, &call));
	CHECK_EQ(cuStreamSynchronize(c->stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	call = call_of(c, 64);
	CHECK_EQ(launch(c, FEW, &call), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void wrong_address_test(void **state)
{
	(void)state;
	ranks_run(PROCESSES_MAX, wrong_address, -1);
}

/* ---- A context that fails ---- */

static int tasks(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	CHECK(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static bool fewer_tasks(void *busy)
{
	return tasks() < *(int *)busy;
}

/* A context fault ends a waiting kernel, which then posts neither a failure nor its end. */
static void torn_down(struct ranks *ranks, int rank)
{
	process_open(ranks, rank);
	struct comm c = {.control = control_of(ranks, 0, 0),
			 .n = 2,
			 .stream = stream_open(),
			 .src = gpu_alloc(64),
			 .dst = gpu_alloc(64)};
	c.staging[0] = gpu_alloc(PEER_STAGING);
	c.staging[1] = gpu_alloc(PEER_STAGING);
	struct peer_call call = call_of(&c, 64);
	OK(launch(&c, FEW, &call));
	CHECK(soon(waits, c.control));
	int busy = tasks();
	CUcontext context;
	OK(cuCtxGetCurrent(&context));
	fake_context_fault(context);
	CHECK_EQ(cuStreamDestroy(c.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(soon(fewer_tasks, &busy));
	CHECK_EQ(c.control->failed, 0);
	CHECK_EQ(c.control->ended, 0);
}

static void torn_down_test(void **state)
{
	(void)state;
	ranks_run(1, torn_down, -1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(modules_test),		  cmocka_unit_test(eager_test),
		cmocka_unit_test(captured_test),	  cmocka_unit_test(by_hand_test),
		cmocka_unit_test(captured_messages_test), cmocka_unit_test(two_communicators_test),
		cmocka_unit_test(peer_killed_test),	  cmocka_unit_test(wrong_address_test),
		cmocka_unit_test(torn_down_test),
	};
	if (argc != 1 + KERNELS)
		return 1;
	for (unsigned i = 0; i < KERNELS; i++)
		ptx_paths[i] = argv[1 + i];
	setenv("NCCLSVC_FAKE_GPUS", "4", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
