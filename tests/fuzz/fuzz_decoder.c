/* SPDX-License-Identifier: Apache-2.0
 * All checks of a message before it is handled, in all protocol versions. Input: number of fds,
 * number of ranks, rank, then the datagram. */
#include <stdint.h>
#include <string.h>

#include "proto/names.h"
#include "proto/ring.h"
#include "proto/task.h"

#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition))                                                                  \
			__builtin_trap();                                                          \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks a record as the daemon checks one from a socket. */
static int check(const struct svc_record *r, uint32_t nranks, int32_t rank, char *text)
{
	uint64_t src, dst;
	int result = svc_record_check_half(r, text);
	return result ? result : svc_record_measure(r, nranks, rank, &src, &dst, text);
}

static void check_record(const void *body, uint32_t nranks, int32_t rank)
{
	struct svc_record r, other;
	uint64_t src, dst, va = 0, vb = 0;
	char text[SVC_TEXT_BYTES];
	memcpy(&r, body, sizeof(r));
	int result = check(&r, nranks, rank, text);
	REQUIRE(result <= 0);
	REQUIRE(check(&r, nranks, rank, NULL) == result);
	if (result) {
		REQUIRE(svc_text_ends(text, sizeof(text)) && text[0]);
		return;
	}
	REQUIRE(svc_task_extent(&r, nranks, rank, &src, &dst));
	uint64_t one = r.op == NCCLSVC_BARRIER ? 0 : r.count * svc_type_size(r.type);
	REQUIRE(src == 0 || src == one || src == one * nranks);
	REQUIRE(dst == 0 || dst == one || dst == one * nranks);
	REQUIRE(svc_task_bytes(&r, nranks) >= (src > dst ? src : dst));
	REQUIRE(svc_op_name(r.op)[0] != '?');
	other = r;
	other.src_offset = ~r.src_offset;
	REQUIRE(svc_op_is_p2p(r.op) ||
		svc_record_differs(&r, &other, &va, &vb) == NCCLSVC_FIELD_NONE);
	other.count = r.count + 1;
	unsigned field = svc_record_differs(&r, &other, &va, &vb);
	REQUIRE(r.op == NCCLSVC_BARRIER ? !field : field == NCCLSVC_FIELD_COUNT);
}

static void check_message(unsigned version, const uint8_t *message, size_t size, unsigned nfds,
			  uint32_t nranks, int32_t rank)
{
	struct svc_header header;
	char text[SVC_TEXT_BYTES];
	memset(text, 'x', sizeof(text));
	enum svc_validity validity = svc_check_request(version, message, size, nfds, &header, text);
	if (validity != SVC_GOOD) {
		REQUIRE(svc_text_ends(text, sizeof(text)));
		REQUIRE(validity == SVC_MALFORMED || header.length == size);
		return;
	}
	const struct svc_shape *shape = svc_shape_of(version, header.opcode);
	REQUIRE(shape && shape->request == size - sizeof(header) && shape->request_fds == nfds);
	REQUIRE(shape->since <= version);
	const uint8_t *body = message + sizeof(header);
	if (header.opcode == SVC_SUBMIT) {
		ncclsvc_status status;
		char sentence[64];
		check_record(body, nranks, rank);
		/* Formats the same bytes as a status: any bytes must yield a sentence. */
		memcpy(&status, body, sizeof(status));
		REQUIRE(svc_status_sentence(&status, sentence, sizeof(sentence)) == sentence);
		REQUIRE(svc_text_ends(sentence, sizeof(sentence)));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 3)
		return 0;
	const uint32_t nranks = 1 + data[1];
	for (unsigned version = SVC_PROTOCOL_MIN; version <= SVC_PROTOCOL_MAX; version++)
		check_message(version, data + 3, size - 3, data[0], nranks,
			      data[2] % (int32_t)nranks);
	return 0;
}
