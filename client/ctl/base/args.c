/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <ncclsvc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "snapshot.h"

#define NS_PER_S    1e9
#define SECONDS_MAX 1e9
#define TIMEOUT_NS  UINT64_C(10000000000)

#define ON(command) (1u << (command))
/* The commands that show all nodes as one. */
#define MERGED	    (ON(CTL_COMMS) | ON(CTL_TASKS) | ON(CTL_WHY) | ON(CTL_FAILURES) | ON(CTL_LATENESS))
#define ANY	    (~0u)

const char ctl_help[] =
	"Usage: ncclsvc-ctl [OPTIONS] COMMAND [ARGUMENTS]\n"
	"Inspect a running ncclsvcd: which process waits for which, and why.\n"
	"\n"
	"Commands:\n"
	"  status                 the daemon in a few lines\n"
	"  sessions               connected processes [--job JOB]\n"
	"  comms                  communicators [--all] [--members] [--comm ID] [--job JOB]\n"
	"  tasks                  pending tasks [--comm ID] [--rank R] [--pid P] [--state S]\n"
	"                         [--stuck SECONDS] [--job JOB] [--sort comm|age]\n"
	"                         [--limit N]\n"
	"  memory                 registered regions, and totals per process [--pid P]\n"
	"  devices                GPUs and their workers\n"
	"  plan                   plans: each member's position and missing tasks [--comm ID] "
	"[--rank "
	"R]\n"
	"  lateness               which ranks come late to collectives, and by how much [--comm "
	"ID]\n"
	"  why                    what is stuck, and whose fault it is [--after SECONDS]\n"
	"  failures               what has failed, and who was at fault [--since TIME]\n"
	"                         [--comm ID] [--follow]\n"
	"  doctor                 what prevents the use of the daemon's GPUs from here\n"
	"  groups                 the groups of a world that need not exist: --world W\n"
	"                         [--local-size L] [--data D] [--horizontal H] [--pipeline P]\n"
	"                         [--rank R]\n"
	"  dump                   the last operations of each process, also of ended ones\n"
	"                         [--comm ID] [--rank R] [--pid P] [--pytorch DIR]\n"
	"  cancel task ID         end a pending task\n"
	"  cancel comm ID         end all pending tasks of a communicator\n"
	"  cancel session ID      end a session\n"
	"  drain                  take no new jobs [--wait: until none is left, or --timeout]\n"
	"  resume                 take new jobs again\n"
	"  watch [COMMAND]        show a command (tasks) again and again [-n SECONDS] [--count N]\n"
	"  version, help\n"
	"\n"
	"Options:\n"
	"  --socket PATH          the daemon's socket\n"
	"  --node N|local|all     whose lists to show: of comms, tasks, why, failures and\n"
	"                         lateness all nodes', else this node's\n"
	"  --json                 one line of JSON instead of text\n"
	"  --timeout SECONDS      give up after this long without an answer (10)\n"
	"  --help, --version\n"
	"\n"
	"Exit codes: 0 good, 1 error, 2 usage, 3 something is stuck (why), 4 daemon not "
	"reachable,\n"
	"5 nothing found (cancel), 6 something has failed lately (why), 7 jobs are left (drain "
	"--wait);\n"
	"doctor: 0 good, 1 warnings, 2 problems. See ncclsvc-ctl(1).\n";

static const char *const commands[] = {
	[CTL_STATUS] = "status", [CTL_SESSIONS] = "sessions", [CTL_COMMS] = "comms",
	[CTL_TASKS] = "tasks",	 [CTL_MEMORY] = "memory",     [CTL_DEVICES] = "devices",
	[CTL_PLAN] = "plan",	 [CTL_LATENESS] = "lateness", [CTL_WHY] = "why",
	[CTL_DOCTOR] = "doctor", [CTL_FAILURES] = "failures", [CTL_GROUPS] = "groups",
	[CTL_CANCEL] = "cancel", [CTL_DRAIN] = "drain",	      [CTL_RESUME] = "resume",
	[CTL_WATCH] = "watch",	 [CTL_DUMP] = "dump",	      [CTL_VERSION] = "version",
	[CTL_HELP] = "help",
};

enum option_value {
	OPT_SOCKET = 256,
	OPT_JSON,
	OPT_TIMEOUT,
	OPT_HELP,
	OPT_VERSION,
	OPT_COMM,
	OPT_JOB,
	OPT_RANK,
	OPT_PID,
	OPT_STATE,
	OPT_STUCK,
	OPT_LIMIT,
	OPT_SORT,
	OPT_ALL,
	OPT_MEMBERS,
	OPT_AFTER,
	OPT_SINCE,
	OPT_FOLLOW,
	OPT_LINES,
	OPT_INTERVAL,
	OPT_COUNT,
	OPT_WORLD,
	OPT_LOCAL,
	OPT_DATA,
	OPT_HORIZONTAL,
	OPT_PIPELINE,
	OPT_PYTORCH,
	OPT_NODE,
	OPT_WAIT,
	OPT_END,
};

static const struct option options[] = {
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"json", no_argument, NULL, OPT_JSON},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{"comm", required_argument, NULL, OPT_COMM},
	{"job", required_argument, NULL, OPT_JOB},
	{"rank", required_argument, NULL, OPT_RANK},
	{"pid", required_argument, NULL, OPT_PID},
	{"state", required_argument, NULL, OPT_STATE},
	{"stuck", required_argument, NULL, OPT_STUCK},
	{"limit", required_argument, NULL, OPT_LIMIT},
	{"sort", required_argument, NULL, OPT_SORT},
	{"all", no_argument, NULL, OPT_ALL},
	{"members", no_argument, NULL, OPT_MEMBERS},
	{"after", required_argument, NULL, OPT_AFTER},
	{"since", required_argument, NULL, OPT_SINCE},
	{"follow", no_argument, NULL, OPT_FOLLOW},
	{"lines", no_argument, NULL, OPT_LINES},
	{"interval", required_argument, NULL, OPT_INTERVAL},
	{"count", required_argument, NULL, OPT_COUNT},
	{"world", required_argument, NULL, OPT_WORLD},
	{"local-size", required_argument, NULL, OPT_LOCAL},
	{"data", required_argument, NULL, OPT_DATA},
	{"horizontal", required_argument, NULL, OPT_HORIZONTAL},
	{"pipeline", required_argument, NULL, OPT_PIPELINE},
	{"pytorch", required_argument, NULL, OPT_PYTORCH},
	{"node", required_argument, NULL, OPT_NODE},
	{"wait", no_argument, NULL, OPT_WAIT},
	{NULL, 0, NULL, 0},
};

/* The commands that take an option; not named: all. */
static const unsigned takers[OPT_END - OPT_SOCKET] = {
	[OPT_COMM - OPT_SOCKET] = ON(CTL_TASKS) | ON(CTL_COMMS) | ON(CTL_PLAN) | ON(CTL_FAILURES) |
				  ON(CTL_DUMP) | ON(CTL_LATENESS),
	[OPT_JOB - OPT_SOCKET] =
		ON(CTL_SESSIONS) | ON(CTL_COMMS) | ON(CTL_TASKS) | ON(CTL_FAILURES),
	[OPT_RANK - OPT_SOCKET] = ON(CTL_TASKS) | ON(CTL_PLAN) | ON(CTL_GROUPS) | ON(CTL_DUMP),
	[OPT_PID - OPT_SOCKET] = ON(CTL_TASKS) | ON(CTL_MEMORY) | ON(CTL_DUMP),
	[OPT_STATE - OPT_SOCKET] = ON(CTL_TASKS),
	[OPT_STUCK - OPT_SOCKET] = ON(CTL_TASKS),
	[OPT_LIMIT - OPT_SOCKET] = ON(CTL_TASKS),
	[OPT_SORT - OPT_SOCKET] = ON(CTL_TASKS),
	[OPT_ALL - OPT_SOCKET] = ON(CTL_COMMS),
	[OPT_MEMBERS - OPT_SOCKET] = ON(CTL_COMMS),
	[OPT_AFTER - OPT_SOCKET] = ON(CTL_WHY),
	[OPT_SINCE - OPT_SOCKET] = ON(CTL_FAILURES),
	[OPT_FOLLOW - OPT_SOCKET] = ON(CTL_FAILURES),
	[OPT_LINES - OPT_SOCKET] = ON(CTL_WHY),
	[OPT_INTERVAL - OPT_SOCKET] = ON(CTL_WATCH),
	[OPT_COUNT - OPT_SOCKET] = ON(CTL_WATCH),
	[OPT_WORLD - OPT_SOCKET] = ON(CTL_GROUPS),
	[OPT_LOCAL - OPT_SOCKET] = ON(CTL_GROUPS),
	[OPT_DATA - OPT_SOCKET] = ON(CTL_GROUPS),
	[OPT_HORIZONTAL - OPT_SOCKET] = ON(CTL_GROUPS),
	[OPT_PIPELINE - OPT_SOCKET] = ON(CTL_GROUPS),
	[OPT_PYTORCH - OPT_SOCKET] = ON(CTL_DUMP),
	[OPT_WAIT - OPT_SOCKET] = ON(CTL_DRAIN),
	[OPT_NODE - OPT_SOCKET] =
		MERGED | ON(CTL_SESSIONS) | ON(CTL_MEMORY) | ON(CTL_DEVICES) | ON(CTL_PLAN),
};

struct parser {
	char *text;
	size_t size;
};

__attribute__((format(printf, 2, 3))) static enum ctl_exit usage(const struct parser *p,
								 const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vsnprintf(p->text, p->size, format, list);
	va_end(list);
	return EXIT_USAGE;
}

static bool number(const char *s, uint64_t max, uint64_t *value)
{
	if (!isdigit((unsigned char)*s))
		return false;
	char *end;
	errno = 0;
	unsigned long long v = strtoull(s, &end, 10);
	if (errno || *end || v > max)
		return false;
	*value = v;
	return true;
}

static bool seconds(const char *s, double min, uint64_t *ns)
{
	if (!isdigit((unsigned char)*s) && *s != '.')
		return false;
	char *end;
	double v = strtod(s, &end);
	if (*end || !(v >= min && v <= SECONDS_MAX))
		return false;
	*ns = (uint64_t)(v * NS_PER_S + 0.5);
	return true;
}

/* "2026-11-27 22:05:00" and its beginnings from the day on, with a T or a space, of local time, or
 * of UTC with a Z at the end; or "10m" ago (s, m, h, d). */
static bool moment(const char *s, uint64_t *unix_ns)
{
	static const char *const formats[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S",
					      "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"};
	static const char units[] = "smhd";
	static const double unit_seconds[] = {1, 60, 3600, 86400};
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		struct tm tm = {.tm_isdst = -1};
		const char *end = strptime(s, formats[i], &tm);
		const bool utc = end && !strcmp(end, "Z");
		if (!end || (*end && !utc))
			continue;
		const time_t t = utc ? timegm(&tm) : mktime(&tm);
		*unix_ns = t < 0 ? 0 : (uint64_t)t * 1000000000;
		return true;
	}
	char *end;
	if (!isdigit((unsigned char)*s))
		return false;
	const double value = strtod(s, &end);
	const char *unit = *end ? strchr(units, *end) : NULL;
	if (!unit || end[1])
		return false;
	const double ago = value * unit_seconds[unit - units], now = (double)time(NULL);
	*unix_ns = ago < now ? (uint64_t)((now - ago) * NS_PER_S) : 0;
	return true;
}

static bool small_number(const char *s, int *value)
{
	uint64_t n;
	if (!number(s, INT32_MAX, &n))
		return false;
	*value = (int)n;
	return true;
}

static unsigned state_number(const char *name)
{
	for (unsigned i = NCCLSVC_QUEUED; i <= NCCLSVC_WAITING_GROUP; i++)
		if (!strcmp(name, ncclsvc_state_name(i)))
			return i;
	return 0;
}

static const char *option_name(int value)
{
	for (const struct option *o = options; o->name; o++)
		if (o->val == value)
			return o->name;
	return "?";
}

/* Writes the options that an abbreviated name could mean to buf. False: fewer than two. */
static bool could_be(const char *word, char *buf, size_t size)
{
	const size_t length = strncmp(word, "--", 2) ? 0 : strcspn(word + 2, "=");
	size_t at = 0;
	unsigned n = 0;
	for (const struct option *o = options; o->name; o++) {
		if (!length || strncmp(o->name, word + 2, length))
			continue;
		at += (size_t)snprintf(buf + at, size - at, "%s--%s", n++ ? ", " : "", o->name);
		if (at >= size)
			at = size - 1;
	}
	return n > 1;
}

static enum ctl_exit refuse_option(const struct parser *p, const char *word)
{
	char several[128];
	if (!optopt && could_be(word, several, sizeof(several)))
		return usage(p, "ambiguous option %.*s: %s", (int)strcspn(word, "="), word,
			     several);
	return usage(p, "unknown option %s: try `ncclsvc-ctl help`", word);
}

/* False: the argument is invalid. */
static bool take(struct ctl_args *args, int option, const char *value)
{
	uint64_t n = 0;
	switch (option) {
	case OPT_SOCKET:
		args->socket = value;
		return *value != '\0';
	case OPT_JSON:
		args->json = true;
		return true;
	case OPT_TIMEOUT:
		return seconds(value, 0.001, &args->timeout_ns);
	case OPT_COMM:
		args->comm = value;
		return *value != '\0';
	case OPT_JOB:
		args->job = value;
		return *value != '\0';
	case OPT_RANK:
		if (!number(value, INT32_MAX, &n))
			return false;
		args->rank = (int64_t)n;
		return true;
	case OPT_PID:
		if (!number(value, INT32_MAX, &n))
			return false;
		args->pid = (int64_t)n;
		return true;
	case OPT_STATE:
		args->state = state_number(value);
		return args->state != 0;
	case OPT_STUCK:
		if (!seconds(value, 0, &args->stuck_ns))
			return false;
		if (!args->stuck_ns) /* 0 means pending tasks of any age */
			args->stuck_ns = 1;
		return true;
	case OPT_LIMIT:
		return number(value, UINT64_MAX, &args->limit) && args->limit;
	case OPT_SORT:
		args->sort = strcmp(value, "age") ? CTL_SORT_COMM : CTL_SORT_AGE;
		return args->sort == CTL_SORT_AGE || !strcmp(value, "comm");
	case OPT_ALL:
		args->all = true;
		return true;
	case OPT_MEMBERS:
		args->members = true;
		return true;
	case OPT_LINES:
		args->lines = true;
		return true;
	case OPT_AFTER:
		return seconds(value, 0, &args->after_ns);
	case OPT_SINCE:
		return moment(value, &args->since_ns);
	case OPT_FOLLOW:
		args->follow = true;
		return true;
	case OPT_INTERVAL:
		return seconds(value, 0.05, &args->interval_ns);
	case OPT_COUNT:
		return number(value, UINT64_MAX, &args->frames) && args->frames;
	case OPT_PYTORCH:
		args->pytorch = value;
		return *value != '\0';
	case OPT_WAIT:
		args->wait = true;
		return true;
	case OPT_WORLD:
		return small_number(value, &args->sizes.world);
	case OPT_LOCAL:
		return small_number(value, &args->sizes.local);
	case OPT_DATA:
		return small_number(value, &args->sizes.data);
	case OPT_HORIZONTAL:
		return small_number(value, &args->sizes.horizontal);
	case OPT_PIPELINE:
		return small_number(value, &args->sizes.pipeline);
	case OPT_NODE:
		args->node = strcmp(value, "all") ? SNAPSHOT_LOCAL : SNAPSHOT_ALL;
		return args->node == SNAPSHOT_ALL || !strcmp(value, "local") ||
		       small_number(value, &args->node);
	}
	return false;
}

static enum ctl_command command_number(const char *name)
{
	for (unsigned i = CTL_STATUS; i <= CTL_HELP; i++)
		if (!strcmp(name, commands[i]))
			return (enum ctl_command)i;
	return CTL_NONE;
}

const char *ctl_command_name(enum ctl_command command)
{
	return command >= CTL_STATUS && command <= CTL_HELP ? commands[command] : "?";
}

static enum ctl_exit parse_cancel(const struct parser *p, int argc, char **argv,
				  struct ctl_args *args)
{
	if (argc != 2)
		return usage(p, "cancel needs a kind and an id: cancel task|comm|session ID");
	if (!strcmp(argv[0], "task"))
		args->target = CTL_TARGET_TASK;
	else if (!strcmp(argv[0], "comm"))
		args->target = CTL_TARGET_COMM;
	else if (!strcmp(argv[0], "session"))
		args->target = CTL_TARGET_SESSION;
	else
		return usage(p, "cannot cancel a \"%s\": use task, comm or session", argv[0]);
	uint64_t max = args->target == CTL_TARGET_SESSION ? UINT32_MAX : UINT64_MAX;
	if (!number(argv[1], max, &args->id))
		return usage(p, "\"%s\" is not a %s id: use one that ncclsvc-ctl shows", argv[1],
			     argv[0]);
	return EXIT_GOOD;
}

/* Parses the words of the command line: a command and its arguments. */
static enum ctl_exit parse_words(const struct parser *p, int argc, char **argv,
				 struct ctl_args *args)
{
	if (!argc)
		return usage(p, "no command: try `ncclsvc-ctl help`");
	args->command = command_number(argv[0]);
	if (args->command == CTL_NONE)
		return usage(p, "no such command \"%s\": try `ncclsvc-ctl help`", argv[0]);
	if (args->command == CTL_CANCEL)
		return parse_cancel(p, argc - 1, argv + 1, args);
	if (args->command == CTL_WATCH) {
		args->watch = true;
		args->command = argc > 1 ? command_number(argv[1]) : CTL_TASKS;
		if (args->command < CTL_STATUS || args->command > CTL_WHY)
			return usage(p,
				     "cannot watch \"%s\": use status, sessions, comms, tasks, "
				     "memory, devices, plan, lateness or why",
				     argv[1]);
		argc -= argc > 1;
	}
	if (args->command == CTL_GROUPS && args->sizes.world < 0)
		return usage(p, "groups needs --world N, the number of ranks");
	if (argc > 1)
		return usage(p, "%s takes no arguments, but got \"%s\"",
			     ctl_command_name(args->command), argv[args->watch ? 2 : 1]);
	return EXIT_GOOD;
}

/* The time limit is for all of the wait, and each answer has the default's. */
static void take_wait(struct ctl_args *args, uint32_t given)
{
	if (!args->wait || !(given & 1u << (OPT_TIMEOUT - OPT_SOCKET)))
		return;
	args->wait_ns = args->timeout_ns;
	args->timeout_ns = TIMEOUT_NS;
}

static enum ctl_exit check_takers(const struct parser *p, const struct ctl_args *args,
				  uint32_t given)
{
	unsigned on = ON(args->command) | (args->watch ? ON(CTL_WATCH) : 0);
	for (int o = OPT_SOCKET; o < OPT_END; o++) {
		unsigned taken = takers[o - OPT_SOCKET] ? takers[o - OPT_SOCKET] : ANY;
		if (given & 1u << (o - OPT_SOCKET) && !(taken & on))
			return usage(p, "--%s does not apply to %s", option_name(o),
				     args->watch ? "watch with this command"
						 : ctl_command_name(args->command));
	}
	return EXIT_GOOD;
}

enum ctl_exit args_parse(int argc, char **argv, struct ctl_args *args, char *text, size_t size)
{
	struct parser p = {text, size};
	*args = (struct ctl_args){
		.timeout_ns = TIMEOUT_NS,
		.rank = -1,
		.pid = -1,
		.after_ns = UINT64_C(1000000000),
		.node = SNAPSHOT_ALL,
		.interval_ns = UINT64_C(1000000000),
		.sizes = {-1, -1, -1, -1, -1},
	};
	uint32_t given = 0;
	optind = 0; /* GNU getopt: forget an earlier parse */
	opterr = 0;
	for (int o; (o = getopt_long(argc, argv, ":hVn:", options, NULL)) != -1;) {
		const char *at = optind > 0 && optind <= argc ? argv[optind - 1] : "";
		if (o == 'h' || o == OPT_HELP) {
			args->command = CTL_HELP;
			return EXIT_GOOD;
		}
		if (o == 'V' || o == OPT_VERSION) {
			args->command = CTL_VERSION;
			args->watch = false;
			return EXIT_GOOD;
		}
		if (o == '?')
			return refuse_option(&p, at);
		if (o == ':')
			return usage(&p, "%s needs an argument", at);
		if (o == 'n')
			o = OPT_INTERVAL;
		if (!take(args, o, optarg))
			return usage(&p, "invalid value \"%s\" for --%s: see ncclsvc-ctl(1)",
				     optarg ? optarg : "", option_name(o));
		given |= 1u << (o - OPT_SOCKET);
	}
	enum ctl_exit code = parse_words(&p, argc - optind, argv + optind, args);
	take_wait(args, given);
	if (args->node == SNAPSHOT_ALL && (args->follow || !(MERGED & ON(args->command)))) {
		args->node = SNAPSHOT_LOCAL;
		if (code == EXIT_GOOD && given & 1u << (OPT_NODE - OPT_SOCKET))
			return usage(&p, "%s%s shows one node: --node N or --node local",
				     ctl_command_name(args->command),
				     args->follow ? " --follow" : "");
	}
	return code != EXIT_GOOD ? code : check_takers(&p, args, given);
}
