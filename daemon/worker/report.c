/* SPDX-License-Identifier: Apache-2.0
 * Messages to the supervisor, the loss of the context among them. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "proto/fdio.h"
#include "worker.h"

void worker_send(struct worker *w, const struct worker_message *m)
{
	int error = svc_send(w->sock, m, sizeof(*m), NULL, 0, 0);
	if (error) /* the supervisor is gone, or about to exit */
		w->quit = w->supervisor_lost = true;
}

void worker_die(struct worker *w, const char *why)
{
	struct worker_message m = {.kind = WORKER_DYING, .result = NCCLSVC_WORKER_LOST};
	if (w->dying[0])
		return;
	snprintf(w->dying, sizeof(w->dying), "%s", why);
	memcpy(m.text, w->dying, sizeof(m.text));
	w->quit = true;
	worker_send(w, &m);
}

bool worker_bad(struct worker *w, CUresult error, const char *what)
{
	if (!error)
		return false;
	log_error("%s: %s", what, gpu_api_cuda_error(error));
	/* It may be an error of one request, or of the context, in which case all calls fail: so
	 * try one. */
	if (!w->scratch || !cu.cuMemcpyDtoH(&(char){0}, w->scratch, 1))
		return true;
	char text[SVC_TEXT_BYTES];
	snprintf(text, sizeof(text), "%.100s: %s", what, gpu_api_cuda_error(error));
	worker_die(w, text);
	return true;
}
