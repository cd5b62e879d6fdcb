/* SPDX-License-Identifier: Apache-2.0
 * The table of messages, and the validation of datagrams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/names.h"
#include "proto/wire.h"

static unsigned char message[SVC_MESSAGE_MAX];
static struct svc_header header;
static char text[SVC_TEXT_BYTES];

static size_t compose(unsigned opcode, size_t body)
{
	struct svc_header h = {.length = (uint32_t)(sizeof(h) + body),
			       .opcode = (uint16_t)opcode,
			       .request_id = 7};
	memset(message, 0, sizeof(message));
	memcpy(message, &h, sizeof(h));
	return h.length;
}

static enum svc_validity judge(size_t length, unsigned nfds)
{
	memset(text, 'x', sizeof(text));
	return svc_check_request(SVC_PROTOCOL_MAX, message, length, nfds, &header, text);
}

/* ---- Layout ---- */

/* The lengths of version 1. This table never changes; a new version adds one of what it changes. */
static const struct lengths {
	unsigned opcode, request, request_fds, reply, reply_fds;
} version_1[] = {
	{1, 56, 0, 176, 0},	{2, 8, 0, 16, 3},	{3, 16, 1, 8, 0},   {4, 8, 0, 0, 0},
	{5, 216, 0, 216, 0},	{6, 8, 0, 0, 0},	{7, 80, 0, 216, 0}, {8, 128, 0, 128, 0},
	{9, 16, 0, 32, 0},	{10, 8, 0, 432, 0},	{11, 16, 0, 8, 0},  {12, 96, 0, 8, 0},
	{13, 96, 1, 8, 0},	{15, 32, 1, 16, 0},	{16, 8, 0, 0, 0},   {19, 8, 0, 64, 0},
	{24, 472, 0, 8, 0},	{25, 16, 0, 8, 0},	{26, 8, 0, 0, 0},   {27, 8, 0, 0, 0},
	{28, 8, 0, 0, 1},	{29, 8, 0, 0, 0},	{30, 8, 0, 0, 0},   {31, 64, 0, 0, 0},
	{32, 288, 0, 264, 0},	{33, 280, 0, 0, 0},	{34, 8, 0, 0, 1},   {35, 16, 0, 0, 0},
	{36, 16, 0, 104, 0},	{37, 16, 0, 8, 1},	{38, 8, 0, 0, 0},   {39, 24, 0, 0, 0},
	{40, 8, 0, 128, 0},	{41, 8, 1, 0, 0},	{42, 8, 1, 16, 3},  {43, 16, 0, 0, 0},
	{0x4001, 0, 0, 152, 0}, {0x4002, 0, 0, 264, 0},
};

static const struct lengths *lengths_of(unsigned opcode)
{
	for (size_t i = 0; i < sizeof(version_1) / sizeof(version_1[0]); i++)
		if (version_1[i].opcode == opcode)
			return &version_1[i];
	return NULL;
}

static void every_length_is_as_it_was(void **state)
{
	(void)state;
	assert_int_equal(SVC_PROTOCOL_MIN, 1);
	assert_int_equal(SVC_PROTOCOL_MAX, 1);
	for (unsigned op = 0; op <= UINT16_MAX; op++) {
		const struct svc_shape *shape =
			op & 0x4000 ? svc_event_of(1, op) : svc_shape_of(1, op);
		const struct lengths *due = lengths_of(op);
		assert_true(!shape == !due);
		if (!shape)
			continue;
		assert_int_equal(shape->request, due->request);
		assert_int_equal(shape->request_fds, due->request_fds);
		assert_int_equal(shape->reply, due->reply);
		assert_int_equal(shape->reply_fds, due->reply_fds);
		assert_int_equal(shape->records, op == SVC_LIST);
	}
	assert_int_equal(sizeof(struct svc_header), 16);
	assert_int_equal(sizeof(struct svc_error), 264);
	assert_int_equal(sizeof(struct svc_record), 128);
	assert_int_equal(sizeof(ncclsvc_status), 128);
}

/* Made-up versions 2 and 3: a message that grows twice, and one that version 3 adds. The sender
 * cuts what the session's version lacks. */
static void a_next_version_may_add_and_lengthen_messages(void **state)
{
	static const struct svc_shape first = {"LEAVE", .request = 8},
				      second = {"LEAVE", .request = 16, .reply = 8, .since = 2,
						.before = &first},
				      third = {"LEAVE", .request = 16, .reply = 24, .since = 3,
					       .before = &second},
				      added = {"STAY", .request = 8, .since = 3};
	(void)state;
	assert_ptr_equal(svc_shape_in(&third, 1), &first);
	assert_ptr_equal(svc_shape_in(&third, 2), &second);
	assert_ptr_equal(svc_shape_in(&third, 3), &third);
	assert_null(svc_shape_in(&added, 2));
	assert_ptr_equal(svc_shape_in(&added, 3), &added);
	assert_int_equal(svc_shape_cut(svc_shape_in(&third, 1), 24), 0);
	assert_int_equal(svc_shape_cut(svc_shape_in(&third, 2), 24), 8);
	assert_int_equal(svc_shape_cut(svc_shape_in(&third, 3), 24), 24);
	assert_int_equal(svc_shape_cut(svc_shape_of(1, SVC_LIST), 32 + 5 * 128), 32 + 5 * 128);
}

static void the_highest_common_version_is_chosen(void **state)
{
	static const struct svc_versions own = {SVC_PROTOCOL_MIN, SVC_PROTOCOL_MAX};
	static const unsigned cases[][3] = {
		{1, 1, 1}, {1, 2, 1}, {0, 1, 1}, {0, 999, 1},
		{2, 2, 0}, {7, 9, 0}, {0, 0, 0}, {65535, 65535, 0},
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(
			svc_version_choose(own, (struct svc_versions){cases[i][0], cases[i][1]}),
			cases[i][2]);
}

/* ---- Validation ---- */

static void every_opcode_is_accepted_as_its_shape_says(void **state)
{
	(void)state;
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, op);
		if (!shape) /* numbers are not assigned consecutively */
			continue;
		size_t n = compose(op, shape->request);
		assert_int_equal(judge(n, shape->request_fds), SVC_GOOD);
		assert_int_equal(header.opcode, op);
		assert_int_equal(header.request_id, 7);
		assert_true(sizeof(struct svc_header) + shape->reply <= SVC_MESSAGE_MAX);
		assert_true(shape->request_fds <= SVC_FDS_MAX && shape->reply_fds <= SVC_FDS_MAX);
	}
}

static void a_body_of_another_length_is_refused(void **state)
{
	(void)state;
	for (unsigned op = SVC_HELLO; op < SVC_OPCODE_END; op++) {
		const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, op);
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
		const struct svc_shape *shape = svc_shape_of(SVC_PROTOCOL_MAX, op);
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
		if (op < SVC_OPCODE_END && svc_shape_of(SVC_PROTOCOL_MAX, op))
			continue;
		assert_null(svc_shape_of(SVC_PROTOCOL_MAX, op));
		size_t n = compose(op, 0);
		assert_int_equal(judge(n, 0), SVC_BAD);
		assert_int_equal(header.request_id, 7);
	}
	assert_null(svc_shape_of(SVC_PROTOCOL_MAX, UINT32_MAX));
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
		cmocka_unit_test(every_length_is_as_it_was),
		cmocka_unit_test(a_next_version_may_add_and_lengthen_messages),
		cmocka_unit_test(the_highest_common_version_is_chosen),
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
