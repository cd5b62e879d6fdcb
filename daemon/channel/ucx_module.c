/* SPDX-License-Identifier: Apache-2.0
 * The module ncclsvc-ucx.so: UCX as the carrier between standalone daemons.
 *
 * A message's tag has two parts: the label that its receiver has given to the sender, and the
 * carrier's tag. A receive for data is always posted before its sender may send, so what comes
 * unexpected is either a control message or left over from a connection that is gone. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <utlist.h>

#include "base/timings.h"
#include "carrier.h"

struct node {
	ucp_ep_h ep; /* NULL: not connected */
	uint32_t here, there;
	size_t bytes;
	uint8_t *address;
	bool broken, reported;
};

/* A send or a receive in progress. */
struct op {
	struct op *prev, *next;
	void *request; /* UCX's; NULL once it has ended */
	void *cookie;  /* NULL: nobody waits for it */
	uint32_t here; /* of a send: its node's label */
	size_t bytes;
	bool receives, failed;
	double dropped; /* seconds; 0: it was not */
};

static ucp_context_h context;
static ucp_worker_h worker;
static char own_address[CARRIER_ADDRESS_MAX]; /* UCX's, which the main thread may read any time */
static size_t own_bytes;
static struct node nodes[CARRIER_NODES];
static struct op *active, *over; /* over: for poll */
static unsigned ndropped;
static bool any_broken; /* and not reported */

/* The control message that is being received, or that the caller holds. */
static struct {
	char *memory;
	size_t room, bytes;
	void *request;
	int node; /* -1: to be dropped */
} ear;

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1 + (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Beginning and end ---- */

static int complain(char *why, size_t size, const char *what, ucs_status_t status)
{
	snprintf(why, size, "%s: %s", what, ucs_status_string(status));
	return -1;
}

static ucs_status_t make_context(const struct carrier_network *network)
{
	const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
						   UCP_PARAM_FIELD_MT_WORKERS_SHARED,
				     .features = UCP_FEATURE_TAG,
				     .mt_workers_shared = 0};
	ucp_config_t *config;
	ucs_status_t status = ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK)
		return status;
	if (network->interface && !getenv("UCX_NET_DEVICES"))
		status = ucp_config_modify(config, "NET_DEVICES", network->interface);
	if (status == UCS_OK)
		status = ucp_init(&params, config, &context);
	ucp_config_release(config);
	return status;
}

static ucs_status_t note_address(void)
{
	ucp_address_t *mine;
	const ucs_status_t status = ucp_worker_get_address(worker, &mine, &own_bytes);
	if (status != UCS_OK)
		return status;
	const bool fits = own_bytes <= sizeof(own_address);
	if (fits)
		memcpy(own_address, mine, own_bytes);
	ucp_worker_release_address(worker, mine);
	return fits ? UCS_OK : UCS_ERR_BUFFER_TOO_SMALL;
}

/* The daemon's main thread opens it, and its scheduler's thread uses it. */
static int open_network(const struct carrier_network *network, char *why, size_t size)
{
	const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					    .thread_mode = UCS_THREAD_MODE_SERIALIZED};
	ucs_status_t status = make_context(network);
	if (status != UCS_OK)
		return complain(why, size, "ucp_init", status);
	status = ucp_worker_create(context, &params, &worker);
	if (status == UCS_OK)
		status = note_address();
	if (status == UCS_OK)
		return 0;
	return complain(why, size, "UCX's worker", status);
}

static size_t address(void *out, size_t size)
{
	const size_t bytes = own_bytes <= size ? own_bytes : 0;
	memcpy(out, own_address, bytes);
	return bytes;
}

/* ---- Nodes ---- */

static void on_broken(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	struct node *n = arg;
	(void)status;
	if (n->ep == ep)
		n->broken = any_broken = true;
}

static int broken(uint32_t *here)
{
	for (uint32_t i = 0; any_broken && i < CARRIER_NODES; i++) {
		struct node *n = &nodes[i];
		if (!n->ep || !n->broken || n->reported)
			continue;
		n->reported = true;
		*here = n->here;
		return (int)i;
	}
	any_broken = false;
	return -1;
}

static void close_endpoint(ucp_ep_h ep)
{
	const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
					   .flags = UCP_EP_CLOSE_FLAG_FORCE};
	ucs_status_ptr_t closing = ucp_ep_close_nbx(ep, &force);
	if (UCS_PTR_IS_PTR(closing))
		ucp_request_free(closing); /* it ends by itself */
}

static void disconnect(uint32_t node)
{
	struct node *n = node < CARRIER_NODES ? &nodes[node] : NULL;
	if (!n || !n->ep)
		return;
	ucp_ep_h ep = n->ep;
	n->ep = NULL;
	free(n->address);
	n->address = NULL;
	close_endpoint(ep);
}

static bool is_same(const struct node *n, const void *where, size_t bytes, uint32_t here,
		    uint32_t there)
{
	return n->ep && !n->broken && n->here == here && n->there == there && n->bytes == bytes &&
	       !memcmp(n->address, where, bytes);
}

static int connect_to(uint32_t node, const void *where, size_t bytes, uint32_t here, uint32_t there)
{
	struct node *n = node < CARRIER_NODES ? &nodes[node] : NULL;
	if (!n || !bytes)
		return -1;
	if (is_same(n, where, bytes, here, there))
		return 0;
	disconnect(node);
	const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
						      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
						      UCP_EP_PARAM_FIELD_ERR_HANDLER,
					.address = where,
					.err_mode = UCP_ERR_HANDLING_MODE_PEER,
					.err_handler = {.cb = on_broken, .arg = n}};
	n->address = malloc(bytes);
	if (!n->address || ucp_ep_create(worker, &params, &n->ep) != UCS_OK) {
		n->ep = NULL;
		free(n->address);
		n->address = NULL;
		return -1;
	}
	memcpy(n->address, where, bytes);
	n->bytes = bytes;
	n->here = here;
	n->there = there;
	n->broken = n->reported = false;
	return 0;
}

/* ---- Sends and receives ---- */

static void end_op(struct op *o, bool failed, size_t bytes)
{
	o->request = NULL;
	o->failed = failed;
	o->bytes = bytes;
	ndropped -= o->dropped > 0;
	DL_DELETE(active, o);
	if (o->cookie)
		DL_APPEND(over, o);
	else
		free(o);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
	struct op *o = arg;
	ucp_request_free(request);
	if (!o)
		return;
	struct node *n = &nodes[o->here % CARRIER_NODES];
	if (status != UCS_OK && n->here == o->here) /* not an earlier connection */
		n->broken = any_broken = true;
	end_op(o, status != UCS_OK, 0);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
			void *arg)
{
	ucp_request_free(request);
	end_op(arg, status != UCS_OK, info ? info->length : 0);
}

static ucp_tag_t tag_of(uint32_t label, int tag)
{
	return (ucp_tag_t)label << 32 | (uint32_t)tag;
}

static struct node *connected(int node)
{
	struct node *n = node >= 0 && node < CARRIER_NODES ? &nodes[node] : NULL;
	return n && n->ep ? n : NULL;
}

/* Returns 1 if it is done, 0 if it is in progress, -1 if it failed. */
static int begin_send(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	struct node *n = connected(node);
	struct op *o = n && !n->broken ? calloc(1, sizeof(*o)) : NULL;
	if (!o)
		return -1;
	const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
							    UCP_OP_ATTR_FIELD_USER_DATA,
					    .cb = {.send = on_sent},
					    .user_data = o};
	ucs_status_ptr_t r = ucp_tag_send_nbx(n->ep, from, bytes, tag_of(n->there, tag), &params);
	if (!UCS_PTR_IS_PTR(r)) {
		free(o);
		if (UCS_PTR_STATUS(r) == UCS_OK)
			return 1;
		n->broken = any_broken = true;
		return -1;
	}
	o->request = r;
	o->cookie = cookie;
	o->here = n->here;
	DL_APPEND(active, o);
	return 0;
}

/* The caller expects the cookie later, even if it is done now. */
static int note_over(void *cookie, bool receives, bool failed)
{
	struct op *o = calloc(1, sizeof(*o));
	if (!o)
		return -1;
	o->cookie = cookie;
	o->receives = receives;
	o->failed = failed;
	DL_APPEND(over, o);
	return 0;
}

static int send_bytes(const void *from, size_t bytes, int node, int tag, void *cookie)
{
	const struct node *n = connected(node);
	const int r = bytes > INT_MAX ? -1 : begin_send(from, bytes, node, tag, cookie);
	return r == 1 || (r && n && n->broken) ? note_over(cookie, false, r < 0) : r;
}

static int say(const void *from, size_t bytes, int node, void *cookie)
{
	return begin_send(from, bytes, node, CARRIER_TAG_CONTROL, cookie);
}

static int receive_bytes(void *to, size_t bytes, int node, int tag, void *cookie)
{
	const struct node *n = connected(node);
	if (n && n->broken)
		return note_over(cookie, true, true);
	struct op *o = n && bytes <= INT_MAX ? calloc(1, sizeof(*o)) : NULL;
	if (!o)
		return -1;
	const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
							    UCP_OP_ATTR_FIELD_USER_DATA |
							    UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
					    .cb = {.recv = on_received},
					    .user_data = o};
	o->receives = true;
	o->cookie = cookie;
	DL_APPEND(active, o);
	ucs_status_ptr_t r =
		ucp_tag_recv_nbx(worker, to, bytes, tag_of(n->here, tag), UINT64_MAX, &params);
	if (UCS_PTR_IS_PTR(r)) {
		o->request = r;
		return 0;
	}
	DL_DELETE(active, o);
	free(o);
	return -1;
}

/* A receive that is under way cannot be cancelled, and may never end without the sender. */
static void give_up(void)
{
	struct op *o, *next;
	const double now = seconds();
	DL_FOREACH_SAFE (active, o, next) {
		if (!o->dropped || !o->cookie || now - o->dropped < MPI_DROP_SECONDS)
			continue;
		if (!note_over(o->cookie, true, true))
			o->cookie = NULL;
	}
}

static unsigned poll_done(struct carrier_done *done, unsigned max)
{
	unsigned n = 0;
	struct op *o;
	ucp_worker_progress(worker);
	if (ndropped)
		give_up();
	for (; n < max && (o = over); n++) {
		done[n] = (struct carrier_done){o->cookie, o->bytes, o->failed};
		DL_DELETE(over, o);
		free(o);
	}
	return n;
}

static struct op *op_of(struct op *list, const void *cookie)
{
	struct op *o;
	DL_SEARCH_SCALAR(list, o, cookie, cookie);
	return o;
}

static void drop(void *cookie)
{
	struct op *o = op_of(active, cookie);
	if (!o) { /* it is over: a send is not reported any more */
		o = op_of(over, cookie);
		if (o && !o->receives)
			DL_DELETE(over, o);
		if (o && !o->receives)
			free(o);
		return;
	}
	if (!o->receives) {
		o->cookie = NULL;
		return;
	}
	ndropped += !o->dropped;
	o->dropped = seconds();
	ucp_request_cancel(worker, o->request);
}

/* ---- Control messages ---- */

static int listen_for(unsigned slots, size_t bytes)
{
	(void)slots;
	ear.memory = malloc(bytes);
	ear.room = bytes;
	return ear.memory ? 0 : -1;
}

static int sender_of(ucp_tag_t tag)
{
	const uint32_t label = (uint32_t)(tag >> 32), node = label % CARRIER_NODES;
	const struct node *n = &nodes[node];
	return n->ep && n->here == label && (uint32_t)tag == CARRIER_TAG_CONTROL ? (int)node : -1;
}

/* Begins to receive the next message. False: there is none. */
static bool take_next(void)
{
	const ucp_request_param_t params = {.op_attr_mask = 0};
	ucp_tag_recv_info_t info;
	ucp_tag_message_h m = ucp_tag_probe_nb(worker, 0, 0, 1, &info);
	if (!m)
		return false;
	ear.node = info.length > ear.room ? -1 : sender_of(info.sender_tag);
	ear.bytes = info.length;
	ear.request = ucp_tag_msg_recv_nbx(worker, ear.memory, ear.node < 0 ? 0 : info.length, m,
					   &params);
	return true;
}

/* True: the message is complete, or has failed. */
static bool is_received(void)
{
	if (!UCS_PTR_IS_PTR(ear.request)) {
		if (UCS_PTR_STATUS(ear.request) != UCS_OK)
			ear.node = -1;
		return true;
	}
	const ucs_status_t status = ucp_request_check_status(ear.request);
	if (status == UCS_INPROGRESS)
		return false;
	ucp_request_free(ear.request);
	ear.request = NULL;
	if (status != UCS_OK)
		ear.node = -1;
	return true;
}

static const void *hear(size_t *bytes, int *node)
{
	static bool receiving;
	ucp_worker_progress(worker);
	while (receiving || take_next()) {
		receiving = !is_received();
		if (receiving)
			return NULL;
		if (ear.node < 0)
			continue;
		*bytes = ear.bytes;
		*node = ear.node;
		return ear.memory;
	}
	return NULL;
}

static void finish(bool alone)
{
	(void)alone;
	for (uint32_t i = 0; i < CARRIER_NODES; i++)
		disconnect(i);
	for (int i = 0; i < 1000; i++)
		ucp_worker_progress(worker);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	free(ear.memory);
}

__attribute__((visibility("default"))) const struct carrier_module ncclsvc_carrier = {
	.version = CARRIER_VERSION,
	.open = open_network,
	.carrier = {.name = "UCX",
		    .address = address,
		    .connect = connect_to,
		    .disconnect = disconnect,
		    .broken = broken,
		    .send = send_bytes,
		    .say = say,
		    .receive = receive_bytes,
		    .poll = poll_done,
		    .drop = drop,
		    .listen = listen_for,
		    .hear = hear,
		    .finish = finish},
};
