/* SPDX-License-Identifier: Apache-2.0 */
#include "crossover.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/peer_abi.h"
#include "fdio.h"

#define FILE_BYTES 65536 /* at most */
#define LINE_BYTES 128

/* ---- The path ---- */

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

bool crossover_default_path(char *path, size_t size)
{
	const char *service = variable("STATE_DIRECTORY"), *state = variable("XDG_STATE_HOME");
	const char *home = variable("HOME");
	int n = -1;
	if (service) /* the first of several */
		n = snprintf(path, size, "%.*s/crossover", (int)strcspn(service, ":"), service);
	else if (geteuid() == 0)
		n = snprintf(path, size, "/var/lib/ncclsvc/crossover");
	else if (state)
		n = snprintf(path, size, "%s/ncclsvc/crossover", state);
	else if (home)
		n = snprintf(path, size, "%s/.local/state/ncclsvc/crossover", home);
	return n >= 0 && (size_t)n < size;
}

/* ---- Limits ---- */

static bool is_name(const char *gpu)
{
	const size_t n = strnlen(gpu, NCCLSVC_NAME_BYTES);
	for (size_t i = 0; i < n; i++)
		if (gpu[i] < ' ' || gpu[i] > '~')
			return false;
	return n && n < NCCLSVC_NAME_BYTES && gpu[0] != ' ' && gpu[n - 1] != ' ';
}

static bool is_limit(const struct crossover_limit *l)
{
	return l->ranks >= 2 && l->ranks <= PEER_RANKS && l->bytes <= CROSSOVER_BYTES &&
	       is_name(l->gpu);
}

const struct crossover_limit *crossover_find(const struct crossover *c, const char *gpu,
					     uint32_t ranks, bool mps)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct crossover_limit *l = &c->limits[i];
		if (l->ranks == ranks && l->mps == mps && !strcmp(l->gpu, gpu))
			return l;
	}
	return NULL;
}

bool crossover_put(struct crossover *c, const struct crossover_limit *limit)
{
	if (!is_limit(limit))
		return false;
	const struct crossover_limit *known =
		crossover_find(c, limit->gpu, limit->ranks, limit->mps);
	if (!known && c->n == CROSSOVER_LIMITS)
		return false;
	c->limits[known ? (uint32_t)(known - c->limits) : c->n++] = *limit;
	return true;
}

/* ---- Reading ---- */

/* Digits and the blanks after them. */
static bool take_number(const char **text, uint32_t *n)
{
	const char *p = *text;
	uint64_t value = 0;
	while (*p >= '0' && *p <= '9' && value <= UINT32_MAX)
		value = value * 10 + (uint64_t)(*p++ - '0');
	const bool good = p > *text && *p == ' ' && value <= UINT32_MAX;
	*n = (uint32_t)value;
	*text = p + strspn(p, " ");
	return good;
}

static bool take_mps(const char **text, bool *mps)
{
	*mps = !strncmp(*text, "yes ", 4);
	if (!*mps && strncmp(*text, "no ", 3) != 0)
		return false;
	*text += strcspn(*text, " ");
	*text += strspn(*text, " ");
	return true;
}

/* NULL: the line is valid. */
static const char *take_line(struct crossover *c, const char *line)
{
	struct crossover_limit l = {0};
	if (!*line || *line == '#')
		return NULL;
	if (!take_number(&line, &l.ranks) || !take_mps(&line, &l.mps) ||
	    !take_number(&line, &l.bytes))
		return "it is not the number of ranks, yes or no, bytes, and a GPU's model";
	if (strlen(line) >= sizeof(l.gpu))
		return "the GPU's model is too long";
	memcpy(l.gpu, line, strlen(line));
	if (!is_limit(&l))
		return "a value is out of range";
	if (crossover_find(c, l.gpu, l.ranks, l.mps))
		return "given twice";
	return crossover_put(c, &l) ? NULL : "too many lines";
}

static const char *take_text(struct crossover *c, const char *text, size_t size, unsigned *number)
{
	const char *end, *wrong = NULL;
	for (const char *at = text; !wrong && at < text + size; at = end + 1) {
		char line[LINE_BYTES];
		end = memchr(at, '\n', size - (size_t)(at - text));
		if (!end)
			end = text + size;
		const size_t n = (size_t)(end - at);
		++*number;
		if (n >= sizeof(line))
			return "the line is too long";
		memcpy(line, at, n);
		line[n] = '\0';
		wrong = strlen(line) == n ? take_line(c, line) : "it contains a NUL byte";
	}
	return wrong;
}

bool crossover_read(struct crossover *c, const char *path, char why[CROSSOVER_TEXT])
{
	char text[FILE_BYTES + 1];
	unsigned number = 0;
	c->n = 0;
	const ssize_t n = svc_read_file(path, text, sizeof(text));
	if (n == -ENOENT || n == -ENOTDIR)
		return true;
	if (n < 0) {
		snprintf(why, CROSSOVER_TEXT, "%s",
			 n == -EISDIR ? "it is not a regular file" : strerror((int)-n));
		return false;
	}
	const char *wrong =
		n > FILE_BYTES ? "the file is too long" : take_text(c, text, (size_t)n, &number);
	if (!wrong)
		return true;
	c->n = 0;
	if (number)
		snprintf(why, CROSSOVER_TEXT, "line %u: %s", number, wrong);
	else
		snprintf(why, CROSSOVER_TEXT, "%s", wrong);
	return false;
}

/* ---- Writing ---- */

static int make_directories(const char *path)
{
	char part[PATH_MAX];
	if (strlen(path) >= sizeof(part))
		return ENAMETOOLONG;
	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
		if (mkdir(part, 0755) && errno != EEXIST)
			return errno;
	}
	return 0;
}

static bool print(const struct crossover *c, FILE *f)
{
	fputs("# Up to how many bytes collectives are faster on the direct transport than on "
	      "NCCL,\n"
	      "# as ncclsvc-perf crossover has measured it. ncclsvcd reads it: peer_bytes in\n"
	      "# ncclsvcd.conf(5).\n"
	      "# ranks MPS bytes GPU\n",
	      f);
	for (uint32_t i = 0; i < c->n; i++) {
		const struct crossover_limit *l = &c->limits[i];
		fprintf(f, "%u %s %u %s\n", l->ranks, l->mps ? "yes" : "no", l->bytes, l->gpu);
	}
	return !fflush(f) && !ferror(f) && !fsync(fileno(f)) && !fchmod(fileno(f), 0644);
}

int crossover_write(const struct crossover *c, const char *path)
{
	char fresh[PATH_MAX];
	int error = make_directories(path);
	if (error)
		return error;
	if (snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= (int)sizeof(fresh))
		return ENAMETOOLONG;
	const int fd = mkostemp(fresh, O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (fd < 0)
		return errno;
	if (!f) {
		error = errno;
		close(fd);
		unlink(fresh);
		return error;
	}
	if (!print(c, f))
		error = errno;
	if (fclose(f) && !error)
		error = errno;
	if (!error && rename(fresh, path))
		error = errno;
	if (error)
		unlink(fresh);
	return error;
}
