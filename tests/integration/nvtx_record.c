/* SPDX-License-Identifier: Apache-2.0
 * A profiler that NVTX loads through NVTX_INJECTION64_PATH. It writes ranges to the file
 * $NVTX_RECORD: a line with the name where a range begins, and a line "-" where one ends. */
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

static void write_line(const char *name)
{
	char line[160];
	size_t n = strlen(name) < sizeof(line) - 1 ? strlen(name) : sizeof(line) - 1;
	const char *path = getenv("NVTX_RECORD");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	if (fd < 0)
		return;
	memcpy(line, name, n);
	line[n] = '\n';
	ssize_t written = write(fd, line, n + 1);
	(void)written;
	close(fd);
}

static nvtxRangeId_t NVTX_API range_start(const char *name)
{
	static nvtxRangeId_t last;
	write_line(name);
	return ++last;
}

static void NVTX_API range_end(nvtxRangeId_t id)
{
	(void)id;
	write_line("-");
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
	const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
	NvtxFunctionTable table = NULL;
	unsigned size = 0;
	if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
	    size <= NVTX_CBID_CORE_RangeEnd)
		return 0;
	*table[NVTX_CBID_CORE_RangeStartA] = (NvtxFunctionPointer)range_start;
	*table[NVTX_CBID_CORE_RangeEnd] = (NvtxFunctionPointer)range_end;
	return 1;
}
