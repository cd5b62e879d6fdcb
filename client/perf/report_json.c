/* SPDX-License-Identifier: Apache-2.0
 * The metadata of every report, and where JSON goes. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "build_config.h"
#include "process.h"
#include "report.h"

static void cpu_model(char *buf, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/cpuinfo", "re");
	snprintf(buf, size, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *value = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !value)
			continue;
		value[strcspn(value, "\n")] = '\0';
		snprintf(buf, size, "%s", value + 1 + strspn(value + 1, " "));
		break;
	}
	if (f)
		fclose(f);
}

static int cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Other work on the machine disturbs the figures, so it is told. */
static double load(void)
{
	double average = 0;
	return getloadavg(&average, 1) == 1 ? average : 0;
}

json_t *report_json_new(const struct options *o)
{
	char model[128];
	struct utsname system;
	cpu_model(model, sizeof(model));
	uname(&system);
	return json_pack("{s:s, s:s, s:i, s:s, s:f, s:s, s:s, s:s, s:b, s:b, s:i, s:[]}", "version",
			 NCCLSVC_VERSION_STRING, "command", o->command_line, "cpus", cpus(),
			 "cpu_model", model, "load", load(), "kernel", system.release, "device",
			 o->cuda ? "cuda" : "host", "memory", memory_name(o), "ring", !o->no_ring,
			 "plan", o->planned, "list", (int)o->lists, "rows");
}

/* 0, or errno. What is there is left as it is, and nothing is made. */
static int try_file(const char *path)
{
	char dir[PATH_MAX] = ".";
	struct stat st;
	const char *slash = strrchr(path, '/');
	if (slash)
		snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path) + 1, path);
	if (!stat(path, &st)) {
		if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
			return access(path, W_OK) ? errno : 0; /* who reads it waits for one end */
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		return fd < 0 || close(fd) ? errno : 0;
	}
	return errno != ENOENT || !*path || access(dir, W_OK | X_OK) ? errno : 0;
}

bool report_json_possible(const struct options *o)
{
	int error = o->json_path ? try_file(o->json_path) : 0;
	if (error)
		complain("can't write the JSON to %s: %s", o->json_path, strerror(error));
	return !error;
}

bool report_json_write(const struct options *o, json_t *json)
{
	FILE *f = o->json_path ? fopen(o->json_path, "we") : stdout;
	bool good = f && json_dumpf(json, f, JSON_INDENT(2)) == 0 && fputc('\n', f) != EOF;
	if (f)
		good = (o->json_path ? fclose(f) : fflush(f)) == 0 && good;
	if (!good)
		complain("can't write the JSON to %s", o->json_path ? o->json_path : "stdout");
	return good;
}

bool report_json_finish(const struct options *o, json_t *json, bool made)
{
	if (!made)
		complain("out of memory");
	bool good = made && (!o->json || report_json_write(o, json));
	json_decref(json);
	return good;
}

void report_header(const struct options *o, const char *what)
{
	char model[128];
	cpu_model(model, sizeof(model));
	printf("# ncclsvc-perf %s: %s\n", NCCLSVC_VERSION_STRING, what);
	printf("# %d CPUs (load %.1f), %s; device %s, %s memory%s%s", cpus(), load(), model,
	       o->cuda ? "cuda" : "host", memory_name(o), o->no_ring ? ", no ring" : "",
	       o->planned ? ", planned" : "");
	if (o->lists)
		printf(", lists of %u tensors a rank", o->lists);
	putchar('\n');
}
