/* SPDX-License-Identifier: Apache-2.0 */
#include "handles.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "memory.h"
#include "proto/names.h"

/* Either a handle's bytes, or a device and an address; the rest is zero. */
struct name {
	uint8_t handle[sizeof(((struct mapping *)0)->handle)];
	uint64_t device, address;
};

struct handle_owner {
	struct name name;
	const struct account *account; /* exists while a mapping is bound */
	uint32_t uses;
	struct handles *all;
	UT_hash_handle hh;
};

static ncclsvc_result take(struct handles *all, const struct name *name, const struct account *a,
			   struct handle_owner **owner)
{
	struct handle_owner *o;
	HASH_FIND(hh, all->by_name, name, sizeof(*name), o);
	if (o && o->account != a)
		return NCCLSVC_PERMISSION;
	if (!o) {
		o = calloc(1, sizeof(*o));
		if (!o)
			return NCCLSVC_NO_MEMORY;
		o->name = *name;
		o->account = a;
		o->all = all;
		HASH_ADD(hh, all->by_name, name, sizeof(o->name), o);
	}
	o->uses++;
	*owner = o;
	return NCCLSVC_OK;
}

static void drop(struct handle_owner **owner)
{
	struct handle_owner *o = *owner;
	*owner = NULL;
	if (!o || --o->uses)
		return;
	HASH_DEL(o->all->by_name, o);
	free(o);
}

ncclsvc_result handle_bind(struct handles *all, const struct session *c, struct mapping *m)
{
	struct name name = {0};
	memcpy(name.handle, m->handle, sizeof(name.handle));
	return take(all, &name, c->account, &m->owner);
}

ncclsvc_result handle_mapped(struct handles *all, const struct session *c, struct mapping *m,
			     uint64_t address)
{
	const struct name name = {.device = (uint64_t)m->device, .address = address};
	return take(all, &name, c->account, &m->address_owner);
}

const char *handle_refusal(ncclsvc_result result)
{
	return result == NCCLSVC_PERMISSION
		       ? "the memory that the CUDA IPC handle names is registered by another tenant"
		       : svc_result_meaning(result);
}

void handle_unmapped(struct mapping *m)
{
	drop(&m->address_owner);
}

void handle_unbind(struct mapping *m)
{
	drop(&m->address_owner);
	drop(&m->owner);
}
