/* SPDX-License-Identifier: Apache-2.0
 * Each rank's own files: its two newest checkpoints, because another rank may be one behind. A file
 * is renamed into place when it is complete. With --zero it contains the rank's part of the
 * optimizer's state. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer_rank.h"

#define MAGIC UINT64_C(0x32746e696f70) /* "point2" */

/* Only the same part of a run with the same shape may read it. */
struct head {
	uint64_t magic, step;
	int32_t data, horizontal, pipeline, zero;
	uint64_t parameters, own, own_end;
};

static struct head head_of(const struct rank *r, uint64_t step)
{
	const struct options *o = r->o;
	return (struct head){MAGIC,   step,	  o->data,	o->horizontal,	 o->pipeline,
			     o->zero, r->stage.n, r->stage.own, r->stage.own_end};
}

static int number_of(const struct rank *r)
{
	return r->o->single ? 0 : r->o->rank;
}

static void path_of(char *path, size_t size, const struct rank *r, uint64_t step)
{
	snprintf(path, size, "%s/rank%d-%" PRIu64 ".ckpt", r->o->checkpoints, number_of(r), step);
}

uint64_t checkpoint_newest(const struct rank *r)
{
	uint64_t newest = 0;
	DIR *d = r->o->checkpoints ? opendir(r->o->checkpoints) : NULL;
	for (struct dirent *e; d && (e = readdir(d));) {
		int rank, end = 0;
		uint64_t step;
		if (sscanf(e->d_name, "rank%d-%" SCNu64 ".ckpt%n", &rank, &step, &end) == 2 &&
		    end && !e->d_name[end] && rank == number_of(r) && step > newest)
			newest = step;
	}
	if (d)
		closedir(d);
	return newest;
}

bool checkpoint_load(struct rank *r, uint64_t step)
{
	const struct head expected = head_of(r, step);
	const size_t n = r->stage.n, own = r->stage.own_end - r->stage.own;
	char path[512];
	struct head h;
	path_of(path, sizeof(path), r, step);
	FILE *f = fopen(path, "re");
	bool good = f && fread(&h, sizeof(h), 1, f) == 1 && !memcmp(&h, &expected, sizeof(h)) &&
		    fread(r->parameters.host, sizeof(float), n, f) == n &&
		    fread(r->velocity, sizeof(float), own, f) == own;
	if (!good)
		say("cannot read the checkpoint %s: %s", path,
		    f ? "it is truncated, or from a run with another --data, --horizontal, "
			"--pipeline or --zero"
		      : strerror(errno));
	if (f)
		fclose(f);
	return good;
}

bool checkpoint_save(const struct rank *r, uint64_t step)
{
	const struct head h = head_of(r, step);
	const size_t n = r->stage.n, own = r->stage.own_end - r->stage.own;
	char path[512], draft[512];
	path_of(path, sizeof(path), r, step);
	snprintf(draft, sizeof(draft), "%s/rank%d.draft", r->o->checkpoints, number_of(r));
	FILE *f = fopen(draft, "we");
	bool good = f && fwrite(&h, sizeof(h), 1, f) == 1 &&
		    fwrite(r->parameters.host, sizeof(float), n, f) == n &&
		    fwrite(r->velocity, sizeof(float), own, f) == own && fflush(f) == 0 &&
		    fsync(fileno(f)) == 0;
	if (f)
		good = fclose(f) == 0 && good;
	good = good && rename(draft, path) == 0;
	if (!good) {
		say("cannot write the checkpoint %s: %s", path, strerror(errno));
		return false;
	}
	if (step > 2 * r->o->interval) {
		path_of(path, sizeof(path), r, step - 2 * r->o->interval);
		unlink(path);
	}
	return true;
}
