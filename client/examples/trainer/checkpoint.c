/* SPDX-License-Identifier: Apache-2.0
 * Each rank's own files: those of its two newest checkpoints, since another rank may have come one
 * less far. A file appears whole, by its name. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

#define MAGIC UINT64_C(0x31746e696f70) /* "point1" */

struct head {
	uint64_t magic, step, stage, params;
};

static void path_of(char *path, size_t size, const char *dir, int rank, uint64_t step)
{
	snprintf(path, size, "%s/rank%d-%" PRIu64 ".ckpt", dir, rank, step);
}

uint64_t checkpoint_newest(const char *dir, int rank)
{
	uint64_t newest = 0;
	DIR *d = dir ? opendir(dir) : NULL;
	for (struct dirent *e; d && (e = readdir(d));) {
		int r, end = 0;
		uint64_t step;
		if (sscanf(e->d_name, "rank%d-%" SCNu64 ".ckpt%n", &r, &step, &end) == 2 && end &&
		    !e->d_name[end] && r == rank && step > newest)
			newest = step;
	}
	if (d)
		closedir(d);
	return newest;
}

bool checkpoint_load(const char *dir, int rank, uint64_t step, struct stage *s)
{
	char path[512];
	struct head h;
	path_of(path, sizeof(path), dir, rank, step);
	FILE *f = fopen(path, "re");
	bool good = f && fread(&h, sizeof(h), 1, f) == 1 && h.magic == MAGIC && h.step == step &&
		    h.stage == (uint64_t)s->stage && h.params == s->n &&
		    fread(s->params, sizeof(float), s->n, f) == s->n &&
		    fread(s->velocity, sizeof(float), s->n, f) == s->n;
	if (!good)
		say("cannot read the checkpoint %s: %s", path,
		    f ? "it is of another model, or cut" : strerror(errno));
	if (f)
		fclose(f);
	return good;
}

bool checkpoint_save(const char *dir, int rank, uint64_t step, const struct stage *s,
		     uint64_t interval)
{
	char path[512], draft[512];
	struct head h = {MAGIC, step, (uint64_t)s->stage, s->n};
	path_of(path, sizeof(path), dir, rank, step);
	snprintf(draft, sizeof(draft), "%s/rank%d.draft", dir, rank);
	FILE *f = fopen(draft, "we");
	bool good = f && fwrite(&h, sizeof(h), 1, f) == 1 &&
		    fwrite(s->params, sizeof(float), s->n, f) == s->n &&
		    fwrite(s->velocity, sizeof(float), s->n, f) == s->n && fflush(f) == 0 &&
		    fsync(fileno(f)) == 0;
	if (f)
		good = fclose(f) == 0 && good;
	good = good && rename(draft, path) == 0;
	if (!good) {
		say("cannot write the checkpoint %s: %s", path, strerror(errno));
		return false;
	}
	if (step > 2 * interval) {
		path_of(path, sizeof(path), dir, rank, step - 2 * interval);
		unlink(path);
	}
	return true;
}
