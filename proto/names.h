/* SPDX-License-Identifier: Apache-2.0
 * Names, sizes and classes of the shared vocabulary. Every function accepts any value: unknown ones
 * give "?" or 0. */
#ifndef PROTO_NAMES_H
#define PROTO_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "ncclsvc_types.h"

const char *svc_result_name(int result);
bool svc_result_known(int result);
const char *svc_result_meaning(int result);
const char *svc_op_name(unsigned op);
const char *svc_type_name(unsigned type);
const char *svc_redop_name(unsigned redop);
const char *svc_state_name(unsigned state);
const char *svc_field_name(unsigned field);
const char *svc_epoch_state_name(unsigned state);
const char *svc_epoch_cause_name(unsigned cause);
const char *svc_ending_name(unsigned ending);
const char *svc_failure_name(unsigned failure);
/* "exited with status 1", "was killed by SIGSEGV". Returns text. */
#define SVC_ENDING_BYTES 64
const char *svc_ending_text(unsigned ending, int code, char text[SVC_ENDING_BYTES]);

/* Bytes of one element, or of two packed elements; 0: unknown type. Inline, since every submission
 * calls it.
 */
static inline size_t svc_type_size(unsigned type)
{
#define SVC_SIZE_ENTRY(value, number, name, size) [number] = (size),
	static const uint8_t sizes[] = {NCCLSVC_TYPES(SVC_SIZE_ENTRY)};
#undef SVC_SIZE_ENTRY
	return type < sizeof(sizes) ? sizes[type] : 0;
}

static inline bool svc_type_packed(unsigned type)
{
	return type == NCCLSVC_INT4 || type == NCCLSVC_UINT4;
}

/* Types that NCCL lacks are only moved, as an NCCL type of the same size. */
static inline bool svc_type_reduces(unsigned type)
{
	return type <= NCCLSVC_FLOAT8E5M2;
}

static inline unsigned svc_nccl_type(unsigned type)
{
	if (svc_type_reduces(type))
		return type;
	return svc_type_size(type) == 1 ? NCCLSVC_UINT8 : NCCLSVC_FLOAT16;
}

bool svc_redop_known(unsigned redop);
/* Is it a reduction created with SVC_REDOP_ADD? */
bool svc_redop_made(unsigned redop);

/* "GPU-01234567-89ab-...", as nvidia-smi prints it. */
#define SVC_UUID_TEXT 41
void svc_uuid_text(const uint8_t uuid[16], char text[SVC_UUID_TEXT]);

/* Is it a terminated text of printable ASCII, followed by zeros? It appears in sentences and logs.
 */
bool svc_label_ok(const char *label, size_t size);
/* Makes a label of any text: cut where it is too long, '?' for any other character. Returns to. */
char *svc_label_copy(char *to, size_t size, const char *from);
/* ' "label"', or an empty string without one. Returns text. */
#define SVC_QUOTED_BYTES (NCCLSVC_LABEL_BYTES + 3)
const char *svc_label_quote(const char label[NCCLSVC_LABEL_BYTES], char text[SVC_QUOTED_BYTES]);

/* Describes how a task ended in one sentence, always NUL-terminated; returns buf. */
char *svc_status_sentence(const ncclsvc_status *st, char *buf, size_t size);
/* The same without the result's name. */
char *svc_status_reason(const ncclsvc_status *st, char *buf, size_t size);

/* The socket path that a client uses: path; if NULL or empty, $NCCLSVC_SOCKET; otherwise the user's
 * own, if it exists; otherwise the system's. False: the path does not fit into size bytes, and `to`
 * has its beginning. */
bool svc_socket_path(const char *path, char *to, size_t size);

/* The path of a daemon's socket for administration: admin.sock beside ncclsvcd.sock. Beside a
 * socket with another name, it is that name with .admin, since several daemons may share a
 * directory. False: the path does not fit into size bytes. */
bool svc_admin_path(const char *socket, char *path, size_t size);

#endif
