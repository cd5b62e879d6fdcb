/* SPDX-License-Identifier: Apache-2.0 */
#include "letters.h"

#include <string.h>

void letter_make(struct letter *l, bool send, int peer, ncclsvc_shapes shapes, int64_t tag,
		 size_t n, unsigned seed)
{
	const unsigned size = shapes == A ? seed : 3;
	memset(l, 0, sizeof(*l));
	l->send = send;
	l->seed = seed + 1;
	for (size_t i = 0; i < n; i++) {
		l->dims[i][0] = (int64_t)(i % 5 + size % 7);
		l->dims[i][1] = (int64_t)(i % 11 + size % 5 + 1);
		l->tensors[i] = (ncclsvc_tensor){.type = i % 2 ? NCCLSVC_FLOAT16 : NCCLSVC_FLOAT64,
						 .ndims = shapes == A && !send ? -1 : 2,
						 .dims = l->dims[i]};
	}
	l->message = (ncclsvc_message){.size = sizeof(l->message),
				       .input_signal = true,
				       .remote_rank = peer,
				       .tag = tag,
				       .shapes = shapes,
				       .n = n,
				       .tensors = l->tensors};
	if (shapes == A && !send) {
		l->message.allocate = allocate;
		l->message.arg = &l->got;
	}
}

void letter_fill(struct letter *l)
{
	if (l->send || l->message.shapes == S)
		memory_of(l->tensors, l->message.n, l->send ? l->seed : 0);
}

void letter_begin(const struct side *x, struct letter *l, bool send, int peer,
		  ncclsvc_shapes shapes, int64_t tag, size_t n, unsigned seed)
{
	letter_make(l, send, peer, shapes, tag, n, seed);
	letter_fill(l);
	CHECK_OK(send ? ncclsvc_tensors_isend(x->lists, &l->message, &l->request)
		      : ncclsvc_tensors_irecv(x->lists, &l->message, &l->request));
}

void letter_free(struct letter *l)
{
	CHECK_OK(ncclsvc_request_free(l->request));
	if (l->send || l->message.shapes == S)
		memory_free(l->tensors, l->message.n);
	got_free(&l->got);
	l->request = NULL;
}

void letter_end(struct letter *l)
{
	CHECK_OK(ncclsvc_request_wait(l->request, WAIT_MS));
	if (!l->send && l->message.shapes == S)
		check_list(l->tensors, l->message.n, l->seed);
	if (!l->send && l->message.shapes == A) {
		CHECK_EQ(l->got.calls, 1);
		CHECK_EQ(l->got.n, l->message.n);
		for (size_t i = 0; i < l->got.n; i++) {
			CHECK_EQ(l->got.dims[i][0], l->dims[i][0]);
			CHECK_EQ(l->got.dims[i][1], l->dims[i][1]);
		}
		check_list(l->got.tensors, l->got.n, l->seed);
	}
	letter_free(l);
}

void letter_fails(struct letter *l, ncclsvc_result result, const char *why)
{
	CHECK_RESULT(ncclsvc_request_wait(l->request, WAIT_MS), result);
	says(why);
	letter_free(l);
}
