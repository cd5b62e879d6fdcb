/* SPDX-License-Identifier: Apache-2.0
 * An operation of the flight recorder as JSON: ncclsvc-ctl writes it, and the daemon's own dumps.
 */
#ifndef PROTO_OPERATION_JSON_H
#define PROTO_OPERATION_JSON_H

#include <stddef.h>

#include "ncclsvc_types.h"

#define SVC_OPERATION_JSON 2048 /* room for one */

/* "host"; "unknown": none of these. */
const char *svc_transport_name(unsigned transport);
/* One object, without a line's end. */
const char *svc_operation_json(const ncclsvc_operation_info *i, char text[SVC_OPERATION_JSON]);
/* A string with its quotes, at most max bytes of s. Broken UTF-8 becomes '?'. Returns how many
 * bytes it has; room for 6 * max + 3 suffices. */
size_t svc_json_string(char *to, const char *s, size_t max);

#endif
