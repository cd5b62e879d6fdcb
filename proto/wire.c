/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <stdio.h>
#include <string.h>

struct svc_empty {
	char nothing[0];
};

/* One row per opcode, for the newest version that changed it. */
#define SHAPE(op, in, out, fds_in, fds_out, ...)                                                   \
	[SVC_##op] = {.name = #op,                                                                 \
		      .request = sizeof(struct in),                                                \
		      .reply = sizeof(struct out),                                                 \
		      .request_fds = fds_in,                                                       \
		      .reply_fds = fds_out,                                                        \
		      ##__VA_ARGS__}

static const struct svc_shape requests[SVC_OPCODE_END] = {
	SHAPE(HELLO, svc_hello, svc_hello_reply, 0, 0),
	SHAPE(ATTACH, svc_attach, svc_attach_reply, 0, 3),
	SHAPE(REGION_ADD, svc_region_add, svc_region_reply, 1, 0),
	SHAPE(REGION_DEL, svc_region_del, svc_empty, 0, 0),
	SHAPE(JOIN, svc_join, svc_join_reply, 0, 0),
	SHAPE(LEAVE, svc_leave, svc_empty, 0, 0),
	SHAPE(SPLIT, svc_split, svc_join_reply, 0, 0),
	SHAPE(SUBMIT, svc_record, svc_submit_reply, 0, 0),
	SHAPE(LIST, svc_list, svc_list_reply, 0, 0, .records = true),
	SHAPE(DAEMON_INFO, svc_daemon_info_request, svc_daemon_info_reply, 0, 0),
	SHAPE(CANCEL, svc_cancel, svc_cancel_reply, 0, 0),
	SHAPE(REGION_CUDA, svc_region_cuda, svc_region_reply, 0, 0),
	SHAPE(REGION_CUDA_FD, svc_region_cuda, svc_region_reply, 1, 0),
	SHAPE(PLAN_COMMIT, svc_plan_commit, svc_plan_reply, 1, 0),
	SHAPE(PLAN_DROP, svc_plan_drop, svc_empty, 0, 0),
	SHAPE(WORLD, svc_world, svc_world_reply, 0, 0),
	SHAPE(REGION_RANGE, svc_region_range, svc_region_reply, 0, 0),
	SHAPE(REDOP_ADD, svc_redop_add, svc_redop_reply, 0, 0),
	SHAPE(REDOP_DEL, svc_redop_del, svc_empty, 0, 0),
	SHAPE(JOIN_CANCEL, svc_join_cancel, svc_empty, 0, 0),
	SHAPE(STAGING, svc_staging, svc_empty, 0, 1),
	SHAPE(CAPTURED_GROUP_DEL, svc_captured_group_del, svc_empty, 0, 0),
	SHAPE(ABORT, svc_abort, svc_empty, 0, 0),
	SHAPE(IDENTIFY, svc_identify, svc_empty, 0, 0),
	SHAPE(DESCRIBE, svc_describe, svc_describe_reply, 0, 0),
	SHAPE(REFUSED, svc_refused, svc_empty, 0, 0),
	SHAPE(SHARES, svc_shares, svc_empty, 0, 1),
	SHAPE(SHARE, svc_share, svc_empty, 0, 0),
	SHAPE(SHARED, svc_shared, svc_shared_reply, 0, 0),
	SHAPE(SHARED_PART, svc_shared_part, svc_shared_part_reply, 0, 1),
	SHAPE(DRAIN, svc_drain, svc_empty, 0, 0),
	SHAPE(RESUME, svc_resume, svc_empty, 0, 0),
	SHAPE(ID, svc_id, svc_id_reply, 0, 0),
	SHAPE(CONTROLS, svc_controls, svc_empty, 1, 0),
	SHAPE(ATTACH_AGAIN, svc_attach, svc_attach_reply, 1, 3),
	SHAPE(SLEEP, svc_sleep, svc_empty, 0, 0),
};

static const struct svc_shape events[SVC_EVENT_END - SVC_EVENT_COMM] = {
	{"EVENT_COMM", .reply = sizeof(struct svc_event_comm)},
	{"EVENT_BYE", .reply = sizeof(struct svc_event_bye)},
};

/* The layouts are the protocol: any change of size needs a new version. test_proto_wire.c has the
 * lengths. */
_Static_assert(sizeof(struct svc_header) == 16, "header");
_Static_assert(sizeof(struct svc_error) == 264, "error");
_Static_assert(sizeof(struct svc_hello) == 56, "hello");
_Static_assert(sizeof(struct svc_hello_reply) == 176, "hello reply");
_Static_assert(sizeof(struct svc_join) == 216, "join");
_Static_assert(sizeof(struct svc_join_reply) == 216, "join reply");
_Static_assert(sizeof(struct svc_split) == 80, "split");
_Static_assert(sizeof(struct svc_identify) == 64, "identify");
_Static_assert(sizeof(struct svc_region_cuda) == 96, "device region");
_Static_assert(sizeof(struct svc_region_range) == 472, "range");
_Static_assert(sizeof(struct svc_share) == 16, "share");
_Static_assert(sizeof(struct svc_shared) == 16, "shared");
_Static_assert(sizeof(struct svc_shared_reply) == 104, "shared reply");
_Static_assert(sizeof(struct svc_shared_part) == 16, "shared part");
_Static_assert(sizeof(struct svc_sleep) == 16, "sleep");
_Static_assert(sizeof(struct svc_list_reply) == 32, "list reply");
_Static_assert(sizeof(struct svc_record) == 128, "record");
_Static_assert(sizeof(struct svc_world_reply) == 64, "world reply");
_Static_assert(sizeof(struct svc_plan_task) == 64, "planned task");
_Static_assert(sizeof(ncclsvc_status) == 128, "status");
_Static_assert(offsetof(struct svc_record, timeline) == SVC_HALF, "record halves");
_Static_assert(offsetof(ncclsvc_status, value_a) == SVC_HALF, "status halves");
_Static_assert(sizeof(struct svc_daemon_info_reply) + 16 <= SVC_MESSAGE_MAX, "largest message");

const struct svc_shape *svc_shape_in(const struct svc_shape *shape, unsigned version)
{
	while (shape && shape->since > version)
		shape = shape->before;
	return shape && shape->name ? shape : NULL;
}

const struct svc_shape *svc_shape_of(unsigned version, unsigned opcode)
{
	return opcode < SVC_OPCODE_END ? svc_shape_in(&requests[opcode], version) : NULL;
}

const struct svc_shape *svc_event_of(unsigned version, unsigned opcode)
{
	if (opcode < SVC_EVENT_COMM || opcode >= SVC_EVENT_END)
		return NULL;
	return svc_shape_in(&events[opcode - SVC_EVENT_COMM], version);
}

size_t svc_shape_cut(const struct svc_shape *shape, size_t size)
{
	return size > shape->reply && !shape->records ? shape->reply : size;
}

unsigned svc_version_choose(struct svc_versions ours, struct svc_versions theirs)
{
	const unsigned version = theirs.max < ours.max ? theirs.max : ours.max;
	return version >= theirs.min && version >= ours.min ? version : 0;
}

bool svc_text_ends(const char *text, size_t size)
{
	return memchr(text, '\0', size) != NULL;
}

enum svc_validity svc_check_request(unsigned version, const void *message, size_t length,
				    unsigned nfds, struct svc_header *header, char *text)
{
	memset(header, 0, sizeof(*header));
	if (length < sizeof(*header)) {
		snprintf(text, SVC_TEXT_BYTES, "a message of %zu bytes is shorter than its header",
			 length);
		return SVC_MALFORMED;
	}
	memcpy(header, message, sizeof(*header));
	if (header->length != length) {
		snprintf(text, SVC_TEXT_BYTES, "the header says %u bytes, but the message has %zu",
			 header->length, length);
		return SVC_MALFORMED;
	}
	const struct svc_shape *shape = svc_shape_of(version, header->opcode);
	if (!shape) {
		snprintf(text, SVC_TEXT_BYTES, "protocol version %u has no opcode %u", version,
			 header->opcode);
		return SVC_BAD;
	}
	if (header->reserved || header->result) {
		snprintf(text, SVC_TEXT_BYTES, "%s: reserved header fields are not zero",
			 shape->name);
		return SVC_BAD;
	}
	if (length - sizeof(*header) != shape->request) {
		snprintf(text, SVC_TEXT_BYTES, "%s: the body has %zu bytes instead of %u",
			 shape->name, length - sizeof(*header), shape->request);
		return SVC_BAD;
	}
	if (nfds != shape->request_fds) {
		snprintf(text, SVC_TEXT_BYTES, "%s: %u file descriptors came instead of %u",
			 shape->name, nfds, shape->request_fds);
		return SVC_BAD;
	}
	return SVC_GOOD;
}
