/* SPDX-License-Identifier: Apache-2.0
 * The kernels' code, one set for each device. */
#include <stdlib.h>

#include "cuda/gpu_state.h"
#include "kernels/image.h"
#include "peer.h"

int ncclsvc_has_kernels(void)
{
	return ncclsvc_peer_collective_image_size && ncclsvc_peer_direct_image_size &&
	       ncclsvc_peer_messages_image_size;
}

/* names: one per variant, up to the first NULL. After an error, the caller unloads the module. */
static CUresult load(const struct cuda *cuda, const void *image, const char *const *names,
		     CUmodule *module, CUfunction *functions)
{
	CUresult e = cuda->cuModuleLoadData(module, image);
	if (e) {
		*module = NULL;
		return e;
	}
	for (unsigned v = 0; !e && v < PEER_VARIANTS && names[v]; v++) {
		e = cuda->cuModuleGetFunction(&functions[v], *module, names[v]);
		/* Without this, its first launch would load it, which waits for an idle GPU. */
		if (!e && cuda->cuFuncLoad)
			e = cuda->cuFuncLoad(functions[v]);
	}
	return e;
}

void peer_module_unload(const struct cuda *cuda, struct peer_module *m)
{
	for (unsigned k = 0; k < KERNELS; k++)
		if (m->modules[k])
			cuda->cuModuleUnload(m->modules[k]);
	*m = (struct peer_module){0};
}

static bool modules_load(const struct cuda *cuda, struct peer_module *m)
{
	static const struct {
		const void *image;
		const char *names[PEER_VARIANTS];
	} kernels[KERNELS] = {
		[KERNEL_LL] = {ncclsvc_peer_collective_image, {"ncclsvc_peer_collective"}},
		[KERNEL_DIRECT] = {ncclsvc_peer_direct_image, PEER_DIRECT_NAMES},
		[KERNEL_MESSAGES] = {ncclsvc_peer_messages_image, {"ncclsvc_peer_messages"}},
	};
	for (unsigned k = KERNEL_NONE + 1; k < KERNELS; k++) {
		if (kernels[k].image && load(cuda, kernels[k].image, kernels[k].names,
					     &m->modules[k], m->functions[k])) {
			peer_module_unload(cuda, m);
			return false;
		}
	}
	return true;
}

const struct peer_module *peer_module_of(struct gpu *g, int device)
{
	if (!g->modules)
		g->modules = calloc(GPU_DEVICES, sizeof(*g->modules));
	if (!g->modules)
		return NULL;
	struct peer_module *m = &g->modules[device];
	return m->modules[KERNEL_LL] || modules_load(g->cuda, m) ? m : NULL;
}
