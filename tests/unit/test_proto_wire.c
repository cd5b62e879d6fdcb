/* SPDX-License-Identifier: Apache-2.0
 * The table of messages and the judge of datagrams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "names.h"
#include "wire.h"

static unsigned char message[SVC_MESSAGE_MAX];
static struct svc_header header;
static char text[SVC_TEXT_BYTES];

static size_t compose(unsigned opcode, size_t body)
{
	struct svc_header h = {
		.length = (uint32_t)(sizeof(h) + body), .opcode = (uint16_t)opcode, .serial = 7};
	memset(message, 0, sizeof(message));
	memcpy(message, &h, sizeof(h));
	return h.length;
}

static enum svc_verdict judge(size_t length, unsigned nfds)
{
	memset(text, 'x', sizeof(text));
	return svc_check_request(message, length, nfds, &header, text);
}

static void every_opcode_is_accepted_as_its_shape_says(void **state)
{
	(void)state;
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(op);
		if (!shape) /* numbers are not handed out in order */
			continue;
		size_t n = compose(op, shape->request);
		assert_int_equal(judge(n, shape->request_fds), SVC_GOOD);
		assert_int_equal(header.opcode, op);
		assert_int_equal(header.serial, 7);
		assert_true(sizeof(struct svc_header) + shape->reply <= SVC_MESSAGE_MAX);
		assert_true(shape->request_fds <= SVC_FDS_MAX && shape->reply_fds <= SVC_FDS_MAX);
	}
}

static void a_body_of_another_length_is_refused(void **state)
{
	(void)state;
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(op);
		for (size_t body = 0; shape && body + sizeof(header) <= SVC_MESSAGE_MAX; body++) {
			if (body == shape->request)
				continue;
			size_t n = compose(op, body);
			assert_int_equal(judge(n, shape->request_fds), SVC_BAD);
			assert_true(svc_text_ends(text, sizeof(text)));
			assert_non_null(strstr(text, shape->name));
		}
	}
}

static void another_number_of_fds_is_refused(void **state)
{
	(void)state;
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(op);
		if (!shape)
			continue;
		size_t n = compose(op, shape->request);
		for (unsigned nfds = 0; nfds <= 253; nfds++)
			assert_int_equal(judge(n, nfds),
					 nfds == shape->request_fds ? SVC_GOOD : SVC_BAD);
	}
}

static void what_is_no_frame_is_malformed(void **state)
{
	(void)state;
	size_t n = compose(SVC_LEAVE, sizeof(struct svc_leave));
	for (size_t cut = 0; cut < n; cut++)
		assert_int_equal(judge(cut, 0), SVC_MALFORMED);
	assert_int_equal(judge(n + 1, 0), SVC_MALFORMED);
	assert_true(svc_text_ends(text, sizeof(text)));
}

static void unknown_opcodes_are_refused(void **state)
{
	(void)state;
	for (unsigned op = 0; op <= UINT16_MAX; op++) {
		if (op < SVC_OPCODE_END && svc_shape_of(op))
			continue;
		assert_null(svc_shape_of(op));
		size_t n = compose(op, 0);
		assert_int_equal(judge(n, 0), SVC_BAD);
		assert_int_equal(header.serial, 7);
	}
	assert_null(svc_shape_of(UINT32_MAX));
}

static void reserved_header_fields_are_checked(void **state)
{
	(void)state;
	size_t n = compose(SVC_LEAVE, sizeof(struct svc_leave));
	message[offsetof(struct svc_header, reserved)] = 1;
	assert_int_equal(judge(n, 0), SVC_BAD);
	n = compose(SVC_LEAVE, sizeof(struct svc_leave));
	message[offsetof(struct svc_header, result) + 3] = 0x80;
	assert_int_equal(judge(n, 0), SVC_BAD);
}

static void texts_end_within_their_field(void **state)
{
	(void)state;
	char field[4] = {'a', 'b', 'c', 'd'};
	assert_false(svc_text_ends(field, sizeof(field)));
	field[3] = '\0';
	assert_true(svc_text_ends(field, sizeof(field)));
	assert_false(svc_text_ends(field, 3));
	assert_false(svc_text_ends(field, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_opcode_is_accepted_as_its_shape_says),
		cmocka_unit_test(a_body_of_another_length_is_refused),
		cmocka_unit_test(another_number_of_fds_is_refused),
		cmocka_unit_test(what_is_no_frame_is_malformed),
		cmocka_unit_test(unknown_opcodes_are_refused),
		cmocka_unit_test(reserved_header_fields_are_checked),
		cmocka_unit_test(texts_end_within_their_field),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
