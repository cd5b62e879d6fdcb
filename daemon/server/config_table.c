/* SPDX-License-Identifier: Apache-2.0 */
#include "config_table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/paths.h"
#include "proto/abi/worker_queue.h"
#include "proto/svc_limits.h"
#include "sched/api/scheduler.h"

static const char *const devices[] = {"auto", "cuda", "host", NULL};
static const char *const transports[] = {"auto", "nccl", "mpi", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL};
static const char *const bootstraps[] = {"auto", "none", "mpi", NULL};
static const char *const targets[] = {"auto", "journal", "stderr", NULL};
static const char *const accesses[] = {"owner", "group", "any", NULL};

#define AT(field)     offsetof(struct config, field)
#define YEAR	      (365 * 24 * 3600)
#define NO_AUTO	      INT64_MIN
#define EMPTY_IS_OFF  1 /* a CONFIG_DIRECTORY's initial value; else no directory is "auto" */
/* user_region_bytes, until it is resolved to three quarters of this machine's memory */
#define QUOTA_PERCENT 75

const struct config_key config_keys[] = {
	{"socket", CONFIG_PATH, false, AT(socket), 0, 0, 0, NO_AUTO, NULL,
	 "where to listen (not used when systemd passes the socket)"},
	{"device", CONFIG_ENUM, false, AT(device), 0, 0, CONFIG_DEVICE_AUTO, NO_AUTO, devices,
	 "what runs the tasks"},
	{"ranks", CONFIG_INT, false, AT(ranks), 1, SVC_HOST_RANKS_MAX, 4, NO_AUTO, NULL,
	 "host ranks of the world communicator"},
	{"host_threads", CONFIG_INT, false, AT(host_threads), 1, 64, 0, 0, NULL,
	 "threads that move and reduce data; auto: one per usable CPU, at most 4"},
	{"spin_us", CONFIG_INT, false, AT(spin_us), 0, 1000000, -1, -1, NULL,
	 "microseconds the scheduler and workers poll before they sleep; auto: adapts to recent "
	 "waits"},
	{"log_level", CONFIG_ENUM, true, AT(log_level), 0, 0, LOG_LEVEL_INFO, NO_AUTO, levels,
	 "the lowest level of messages to log"},
	{"log_target", CONFIG_ENUM, false, AT(log_target), 0, 0, LOG_TARGET_AUTO, NO_AUTO, targets,
	 "where messages go; auto: the journal if stderr leads there, else stderr"},
	{"sessions_max", CONFIG_INT, true, AT(sessions_max), 1, SVC_SESSIONS_MAX, 4096, NO_AUTO,
	 NULL, "sessions at a time"},
	{"ring_max", CONFIG_POWER, true, AT(ring_max), SVC_RING_MIN, SVC_RING_MAX, 16384, NO_AUTO,
	 NULL, "most entries in a session's ring"},
	{"comms_max", CONFIG_INT, true, AT(comms_max), 1, SVC_COMMS_MAX, 4096, NO_AUTO, NULL,
	 "communicators at a time"},
	{"user_comms_max", CONFIG_INT, true, AT(user_comms_max), 1, SVC_COMMS_MAX, 3072, NO_AUTO,
	 NULL, "communicators of one user at a time"},
	{"user_nccl_comms_max", CONFIG_INT, true, AT(user_nccl_comms_max), 1, WORKER_COMM_SLOTS,
	 192, NO_AUTO, NULL, "NCCL communicators in use by one user at a time"},
	{"tasks_max", CONFIG_INT, false, AT(tasks_max), 1, 1 << 24, 262144, NO_AUTO, NULL,
	 "pending tasks at a time"},
	{"user_region_bytes", CONFIG_BYTES, true, AT(user_region_bytes), 4096, SVC_REGION_MAX, 0,
	 NO_AUTO, NULL,
	 "registered memory of one user: bytes, with K, M, G or T, or 75% of the RAM"},
	{"user_sessions_max", CONFIG_INT, true, AT(user_sessions_max), 1, SVC_SESSIONS_MAX, 2048,
	 NO_AUTO, NULL, "sessions of one user at a time"},
	{"user_tasks_max", CONFIG_INT, false, AT(user_tasks_max), 1, 1 << 24, 196608, NO_AUTO, NULL,
	 "pending tasks of one user at a time"},
	{"access", CONFIG_ENUM, false, AT(access), 0, 0, CONFIG_ACCESS_OWNER, NO_AUTO, accesses,
	 "who may connect: the daemon's user, the socket's group too, or any user"},
	{"comm_idle_seconds", CONFIG_INT, true, AT(comm_idle_seconds), 0, YEAR, 600, NO_AUTO, NULL,
	 "how long a communicator without members is kept"},
	{"hello_seconds", CONFIG_INT, true, AT(hello_seconds), 1, 3600, 5, NO_AUTO, NULL,
	 "how long a new connection may stay silent"},
	{"drain_seconds", CONFIG_INT, true, AT(drain_seconds), 0, 3600, 10, NO_AUTO, NULL,
	 "how long pending tasks may run on after SIGTERM"},
	{"keepalive_seconds", CONFIG_INT, true, AT(keepalive_seconds), 0, 3600, 30, NO_AUTO, NULL,
	 "how often an idle daemon checks its scheduler; 0: never"},
	{"worker_seconds", CONFIG_INT, true, AT(worker_seconds), 1, 3600, 60, NO_AUTO, NULL,
	 "how long a GPU's worker may take to answer before it is replaced"},
	{"worker_idle", CONFIG_INT, true, AT(worker_idle), 0, YEAR, 30, NO_AUTO, NULL,
	 "after how many seconds an unused worker ends; 0: workers run as long as the daemon"},
	{"idle_release", CONFIG_INT, true, AT(idle_release), 0, YEAR, 0, NO_AUTO, NULL,
	 "after how many seconds an unused NCCL communicator is destroyed; 0: never while it has "
	 "members"},
	{"stuck_after", CONFIG_INT, true, AT(stuck_after), 0, YEAR, 60, NO_AUTO, NULL,
	 "after how many seconds a wait is logged with its reason; 0: never"},
	{"mps", CONFIG_DIRECTORY, false, AT(mps), 0, NCCLSVC_MPS_DIRECTORY_MAX + 1, 0, NO_AUTO,
	 NULL,
	 "NVIDIA's MPS for workers and trainers: the directory of a running one; auto: one that is "
	 "found, else the daemon's own"},
	{"transport", CONFIG_ENUM, false, AT(transport), 0, 0, CONFIG_TRANSPORT_AUTO, NO_AUTO,
	 transports,
	 "what carries device memory: NCCL, or (mpi) the host transport, and MPI between nodes, "
	 "through "
	 "pinned host memory; auto: NCCL if it can be used"},
	{"staging_bytes", CONFIG_BYTES, false, AT(staging_bytes), 2 * STAGING_SLOT_BYTES,
	 INT64_C(1) << 40, INT64_C(64) << 20, NO_AUTO, NULL,
	 "pinned host memory for each GPU, if the transport is mpi: bytes, with K, M, G or T, or a "
	 "part of the RAM in %"},
	{"peer_bytes", CONFIG_BYTES, true, AT(peer_bytes), 0, INT64_C(1) << 30, -1, -1, NULL,
	 "the largest operation, in bytes, that the GPUs' processes run in their own kernels; 0: "
	 "all run on NCCL; auto: as ncclsvc-perf crossover has measured, else 8M with MPS, 64M "
	 "without"},
	{"world_data", CONFIG_INT, true, AT(world_data), 1, SVC_RANKS_MAX, 0, 0, NULL,
	 "data parallelism of the world; auto: the ranks that the other two leave"},
	{"world_horizontal", CONFIG_INT, true, AT(world_horizontal), 1, SVC_RANKS_MAX, 1, NO_AUTO,
	 NULL, "horizontal parallelism of the world"},
	{"world_pipeline", CONFIG_INT, true, AT(world_pipeline), 1, SVC_RANKS_MAX, 1, NO_AUTO, NULL,
	 "pipeline parallelism of the world"},
	{"cluster_bootstrap", CONFIG_ENUM, false, AT(cluster_bootstrap), 0, 0,
	 CONFIG_BOOTSTRAP_AUTO, NO_AUTO, bootstraps,
	 "how several nodes' daemons find each other; auto: through MPI, if mpirun or srun started "
	 "several"},
	{"cluster_interface", CONFIG_TEXT, false, AT(cluster_interface), 0,
	 sizeof(((struct config *)0)->cluster_interface), 0, NO_AUTO, NULL,
	 "the network interface, or this node's address, for connections between daemons; auto: "
	 "the loopback if all share a machine, else the first other one"},
	{"cluster_port", CONFIG_INT, false, AT(cluster_port), 0, 65535, 8477, NO_AUTO, NULL,
	 "the TCP port for connections between standalone daemons; 0: any"},
	{"cluster_key_file", CONFIG_TEXT, true, AT(cluster_key_file), 0,
	 sizeof(((struct config *)0)->cluster_key_file), 0, NO_AUTO, NULL,
	 "a file with the key of this site, in all its nodes; with it, the daemon serves ranks on "
	 "several nodes"},
	{"cluster_certificate", CONFIG_TEXT, true, AT(cluster_certificate), 0,
	 sizeof(((struct config *)0)->cluster_certificate), 0, NO_AUTO, NULL,
	 "in place of cluster_key_file: this node's certificate, in PEM"},
	{"cluster_private_key", CONFIG_TEXT, true, AT(cluster_private_key), 0,
	 sizeof(((struct config *)0)->cluster_private_key), 0, NO_AUTO, NULL,
	 "the certificate's key, in PEM"},
	{"cluster_ca", CONFIG_TEXT, true, AT(cluster_ca), 0,
	 sizeof(((struct config *)0)->cluster_ca), 0, NO_AUTO, NULL,
	 "the certificates, in PEM, of those who may sign the other nodes' ones"},
	{"dump_dir", CONFIG_DIRECTORY, true, AT(dump_dir), 0,
	 sizeof(((struct config *)0)->dump_dir), EMPTY_IS_OFF, NO_AUTO, NULL,
	 "where a failed communicator's last operations are written"},
	{"dump_max_files", CONFIG_INT, true, AT(dump_max_files), 1, 100000, 100, NO_AUTO, NULL,
	 "files that are kept there"},
	{"cluster_seconds", CONFIG_INT, false, AT(cluster_seconds), 1, 3600, 60, NO_AUTO, NULL,
	 "how long the nodes' daemons wait for each other at the start"},
};
const unsigned config_keys_n = sizeof(config_keys) / sizeof(config_keys[0]);
_Static_assert(sizeof(config_keys) / sizeof(config_keys[0]) <= CONFIG_KEYS_MAX,
	       "raise CONFIG_KEYS_MAX");

static int *int_at(const struct config *c, unsigned key)
{
	return (int *)((char *)(uintptr_t)c + config_keys[key].offset);
}

static uint64_t *bytes_at(const struct config *c, unsigned key)
{
	return (uint64_t *)((char *)(uintptr_t)c + config_keys[key].offset);
}

static bool has_auto(const struct config_key *k)
{
	return k->automatic != NO_AUTO;
}

/* Stored as written; empty: auto. */
static bool is_text(const struct config_key *k)
{
	return k->kind == CONFIG_TEXT || k->kind == CONFIG_DIRECTORY;
}

/* The word for a text that is empty. */
static const char *empty_word(const struct config_key *k)
{
	return k->kind == CONFIG_DIRECTORY && k->initial == EMPTY_IS_OFF ? "off" : "auto";
}

static bool is_text_allowed(const struct config_key *k, const char *text)
{
	if (strlen(text) >= (size_t)k->max)
		return false;
	return k->kind == CONFIG_TEXT || text[0] == '/' || !strcmp(text, "off") ||
	       !strcmp(text, empty_word(k));
}

static char plain(char c)
{
	return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

int config_key_find(const char *name)
{
	for (unsigned i = 0; i < config_keys_n; i++) {
		const char *a = config_keys[i].name, *b = name;

		while (*a && (*a == *b || (*a == '_' && *b == '-')))
			a++, b++;
		if (!*a && !*b)
			return (int)i;
	}
	return -1;
}

/* Levenshtein distance, one row at a time. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[64], n = (unsigned)strlen(b);

	if (strlen(a) >= sizeof(row) / sizeof(row[0]) || n >= sizeof(row) / sizeof(row[0]))
		return UINT_MAX;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned corner = row[0];

		row[0] = i + 1;
		for (unsigned j = 0; j < n; j++) {
			unsigned change = corner + (plain(a[i]) != plain(b[j]));
			unsigned edit = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;

			corner = row[j + 1];
			row[j + 1] = change < edit ? change : edit;
		}
	}
	return row[n];
}

const char *config_key_nearest(const char *name)
{
	const char *best = NULL;
	unsigned least = UINT_MAX;

	for (unsigned i = 0; i < config_keys_n; i++) {
		unsigned d = distance(name, config_keys[i].name);

		if (d < least) {
			least = d;
			best = config_keys[i].name;
		}
	}
	return least <= 3 || least <= strlen(name) / 2 ? best : NULL;
}

char *config_key_allowed(unsigned key, char *buf, size_t size)
{
	const struct config_key *k = &config_keys[key];
	size_t n = 0;

	switch (k->kind) {
	case CONFIG_ENUM:
		for (unsigned i = 0; k->values[i] && n < size; i++)
			n += (size_t)snprintf(buf + n, size - n, "%s%s", i ? "|" : "",
					      k->values[i]);
		break;
	case CONFIG_BYTES:
		snprintf(buf, size, "%" PRId64 "..%" PRId64 "T, or 1%%..100%% of the RAM", k->min,
			 k->max >> 40);
		break;
	case CONFIG_PATH:
		snprintf(buf, size, "an absolute path");
		break;
	case CONFIG_TEXT:
		snprintf(buf, size, "at most %" PRId64 " characters, or auto", k->max - 1);
		break;
	case CONFIG_DIRECTORY:
		snprintf(buf, size, "%s, or an absolute path of at most %" PRId64 " characters",
			 k->initial == EMPTY_IS_OFF ? "off" : "auto|off", k->max - 1);
		break;
	default:
		snprintf(buf, size, "%s%" PRId64 "..%" PRId64 "%s",
			 k->kind == CONFIG_POWER ? "a power of two, " : "", k->min, k->max,
			 has_auto(k) ? ", or auto" : "");
	}
	return buf;
}

static uint64_t ram_bytes(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_C(1) << 30;
}

static uint64_t ram_percent(unsigned percent)
{
	uint64_t bytes = ram_bytes() / 100 * percent;

	return bytes < SVC_REGION_MAX ? bytes : SVC_REGION_MAX;
}

static bool parse_digits(const char **text, uint64_t *value)
{
	char *end;

	if (!isdigit((unsigned char)**text))
		return false;
	errno = 0;
	*value = strtoull(*text, &end, 10);
	*text = end;
	return errno == 0;
}

static bool parse_bytes(const struct config_key *k, const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	uint64_t value;

	if (has_auto(k) && !strcmp(text, "auto")) {
		*bytes = (uint64_t)k->automatic;
		return true;
	}
	if (!parse_digits(&text, &value))
		return false;
	if (*text == '%' && !text[1]) {
		if (value < 1 || value > 100)
			return false;
		*bytes = ram_percent((unsigned)value);
		return *bytes >= (uint64_t)k->min;
	}
	if (*text) {
		const char *unit = strchr(units, toupper((unsigned char)*text));

		if (!unit || text[1] || value > UINT64_MAX >> 10 * (unit - units + 1))
			return false;
		value <<= 10 * (unit - units + 1);
	}
	*bytes = value;
	return value >= (uint64_t)k->min && value <= (uint64_t)k->max;
}

static bool parse_int(const struct config_key *k, const char *text, int *number)
{
	uint64_t value;

	if (has_auto(k) && !strcmp(text, "auto")) {
		*number = (int)k->automatic;
		return true;
	}
	if (!parse_digits(&text, &value) || *text || value > INT_MAX)
		return false;
	if ((int64_t)value < k->min || (int64_t)value > k->max)
		return false;
	if (k->kind == CONFIG_POWER && (value & (value - 1)))
		return false;
	*number = (int)value;
	return true;
}

static bool parse_enum(const struct config_key *k, const char *text, int *number)
{
	for (int i = 0; k->values[i]; i++) {
		if (!strcmp(k->values[i], text)) {
			*number = i;
			return true;
		}
	}
	return false;
}

static int host_threads(void)
{
	cpu_set_t set;
	/* Slurm and others limit a process to part of the machine. */
	long cpus = sched_getaffinity(0, sizeof(set), &set) ? sysconf(_SC_NPROCESSORS_ONLN)
							    : CPU_COUNT(&set);

	return cpus < 1 ? 1 : cpus > 4 ? 4 : (int)cpus;
}

int config_key_set(struct config *c, unsigned key, const char *text, char *why, size_t why_size)
{
	const struct config_key *k = &config_keys[key];
	char allowed[128];
	uint64_t bytes;
	int number = 0;
	bool good;

	if (k->kind == CONFIG_PATH) {
		if (paths_check_socket(text, why, why_size))
			return -1;
		snprintf((char *)c + k->offset, sizeof(c->socket), "%s", text);
		return 0;
	}
	if (is_text(k)) {
		good = is_text_allowed(k, text);
		if (good)
			snprintf((char *)c + k->offset, (size_t)k->max, "%s",
				 strcmp(text, empty_word(k)) != 0 ? text : "");
	} else if (k->kind == CONFIG_BYTES) {
		good = parse_bytes(k, text, &bytes);
		if (good)
			*bytes_at(c, key) = bytes;
	} else {
		good = k->kind == CONFIG_ENUM ? parse_enum(k, text, &number)
					      : parse_int(k, text, &number);
		if (good && k->offset == AT(host_threads) && !number)
			number = host_threads();
		if (good)
			*int_at(c, key) = number;
	}
	if (!good) {
		snprintf(why, why_size, "'%.64s' is not allowed: give %s", text,
			 config_key_allowed(key, allowed, sizeof(allowed)));
		return -1;
	}
	return 0;
}

void config_key_reset(struct config *c, unsigned key)
{
	const struct config_key *k = &config_keys[key];

	if (k->kind == CONFIG_PATH)
		c->socket[0] = '\0';
	else if (is_text(k))
		((char *)c)[k->offset] = '\0';
	else if (k->offset == AT(user_region_bytes))
		c->user_region_bytes = ram_percent(QUOTA_PERCENT);
	else if (k->kind == CONFIG_BYTES)
		*bytes_at(c, key) = (uint64_t)k->initial;
	else if (k->offset == AT(host_threads))
		c->host_threads = host_threads();
	else
		*int_at(c, key) = (int)k->initial;
}

char *config_key_format(const struct config *c, unsigned key, char *buf, size_t size)
{
	const struct config_key *k = &config_keys[key];

	switch (k->kind) {
	case CONFIG_PATH:
		snprintf(buf, size, "%s", c->socket);
		break;
	case CONFIG_TEXT:
	case CONFIG_DIRECTORY:
		snprintf(buf, size, "%s",
			 ((const char *)c)[k->offset] ? (const char *)c + k->offset
						      : empty_word(k));
		break;
	case CONFIG_BYTES:
		if (has_auto(k) && *bytes_at(c, key) == (uint64_t)k->automatic)
			snprintf(buf, size, "auto");
		else
			snprintf(buf, size, "%" PRIu64, *bytes_at(c, key));
		break;
	case CONFIG_ENUM:
		snprintf(buf, size, "%s", k->values[*int_at(c, key)]);
		break;
	default:
		if (has_auto(k) && *int_at(c, key) == k->automatic)
			snprintf(buf, size, "auto");
		else
			snprintf(buf, size, "%d", *int_at(c, key));
	}
	return buf;
}

static size_t key_size(unsigned key)
{
	switch (config_keys[key].kind) {
	case CONFIG_PATH:
		return sizeof(((struct config *)0)->socket);
	case CONFIG_TEXT:
	case CONFIG_DIRECTORY:
		return (size_t)config_keys[key].max;
	case CONFIG_BYTES:
		return sizeof(uint64_t);
	default:
		return sizeof(int);
	}
}

bool config_key_equal(const struct config *a, const struct config *b, unsigned key)
{
	const void *x = (const char *)a + config_keys[key].offset;
	const void *y = (const char *)b + config_keys[key].offset;

	if (config_keys[key].kind == CONFIG_PATH || is_text(&config_keys[key]))
		return !strcmp(x, y);
	return !memcmp(x, y, key_size(key));
}

void config_key_copy(struct config *to, const struct config *from, unsigned key)
{
	memcpy((char *)to + config_keys[key].offset, (const char *)from + config_keys[key].offset,
	       key_size(key));
	to->source[key] = from->source[key];
	to->line[key] = from->line[key];
}
