/* SPDX-License-Identifier: Apache-2.0 */
#include "ids.h"

#define NODE_SHIFT   48
#define NUMBER	     ((UINT64_C(1) << NODE_SHIFT) - 1)
#define DEVICE_SHIFT 16
#define FAR_SESSIONS UINT32_C(0x80000000) /* that and the index in session_names */

uint64_t ids_far(uint32_t node, uint64_t id)
{
	return (uint64_t)(node + 1) << NODE_SHIFT | (id & NUMBER);
}

uint32_t ids_node(uint64_t id)
{
	return (uint32_t)(id >> NODE_SHIFT);
}

uint64_t ids_number(uint64_t id)
{
	return id & NUMBER;
}

uint32_t ids_far_session(size_t index)
{
	return FAR_SESSIONS + (uint32_t)index;
}

static const struct snapshot_session_name *session_name(const struct snapshot *s, uint32_t session)
{
	const bool is_far = session >= FAR_SESSIONS && session - FAR_SESSIONS < s->nsession_names;
	return is_far ? &s->session_names[session - FAR_SESSIONS] : NULL;
}

uint32_t ids_session_node(const struct snapshot *s, uint32_t session)
{
	const struct snapshot_session_name *n = session_name(s, session);
	return n ? n->node + 1 : 0;
}

uint32_t ids_session_number(const struct snapshot *s, uint32_t session)
{
	const struct snapshot_session_name *n = session_name(s, session);
	return n ? n->session : session;
}

int32_t ids_device(uint32_t node, int32_t device)
{
	return (int32_t)((node + 1) << DEVICE_SHIFT | ((uint32_t)device & UINT16_MAX));
}
