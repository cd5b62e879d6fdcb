/* SPDX-License-Identifier: Apache-2.0
 *
 * ncclsvc-attack: one user against the rest.
 *
 * The rule: whatever one user does, another user's AllReduce of 16 B takes at most 100 ms, a
 * request at most 250 ms, and the watchdog never starves. Each attack is run by an unprivileged
 * user with the daemon's default limits against a private daemon, while another user's processes
 * measure: two ranks that reduce 16 B every millisecond, and one that makes a request every 5 ms:
 * DAEMON_INFO, or one of a whole session (open, JOIN, REGION_ADD, a task, LEAVE). A refusal or any
 * other error breaks the rule just as a delay does. The watchdog's beats are those that systemd
 * would receive; here the daemon beats every 250 ms. Memory is checked where the attack's table
 * entry limits it. The measurement includes the preparation of the attack, and a moment after its
 * processes were killed.
 *
 * The limits are for a quiet machine. On a loaded one, the processes do not get the CPU in time. So
 * this process measures how late it wakes from its pauses, and the limits grow by WAKES times the
 * longest delay. --slack also multiplies the limits. Run the attack "none" first.
 *
 * To add an attack, write a function into one of the files attacks_*.c and name it in the table at
 * its end. It prepares, calls attack_ready, and continues until it is killed; refusals by the
 * daemon are counted, not errors. Try it on a daemon without the fix: an attack that never broke
 * the rule proves nothing.
 *
 * The program needs root, to act as three users; without root it exits with 77 (meson's
 * "skipped"). Attacks on GPUs need the stand-ins: LD_LIBRARY_PATH=build/tests/fake
 * NCCLSVC_FAKE_GPUS=2.
 */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bystander.h"
#include "slow_fds.h"
#include "target.h"

#define REDUCE_LIMIT_MS	 100
#define REQUEST_LIMIT_MS 250
#define BEAT_LIMIT_MS	 250 /* allowed delay */
#define WAKES                                                                                      \
	4 /* processes that must get the CPU, one after the other: client, daemon,                 \
	     other client, client */
#define LOOK_MS	  10
#define PREPARE_S 60  /* time for an attack to start */
#define QUIET_MS  700 /* measuring the CPU time before the attack */
#define AFTER_MS  700 /* continued measurement after its processes are dead */
#define HELD_UP_S 10  /* additional time for operations still running then */
#define END_LIMIT_MS                                                                               \
	5000 /* from SIGTERM until the daemon has ended, including a drain of one second */
#define SKIPPED 77

static const struct attack *const tables[] = {
	session_attacks,    task_attacks, memory_attacks, listing_attacks, comm_attacks,
	descriptor_attacks, plan_attacks, share_attacks,  region_attacks,  gpu_attacks};

struct options {
	const char *daemon;
	double seconds, slack;
	bool json, logs, unprivileged;
};

struct shared {
	struct attacker attacker;
	struct bystanders bystanders;
};

/* ---- For the attackers ---- */

uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void pause_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	while (nanosleep(&t, &t) < 0)
		;
}

void attack_ready(struct attacker *a, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(a->note, sizeof(a->note), format, args);
	va_end(args);
	a->ready = true;
}

void attack_harms(struct attacker *a, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(a->harm, sizeof(a->harm), format, args);
	va_end(args);
	a->ready = true;
}

bool attack_fork(void)
{
	pid_t parent = getpid();
	if (fork() != 0)
		return false;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	return true;
}

void attack_hold(void)
{
	for (;;)
		pause();
}

static void become_attacker(void)
{
	struct rlimit r;
	setpgid(0, 0);
	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
	if (setgroups(0, NULL) || setresgid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID) ||
	    setresuid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* ---- One attack ---- */

struct outcome {
	bool survived, reduce_open, request_open;
	double reduce_p50, reduce_p99, reduce_worst, request_worst, beat_gap; /* ms */
	unsigned long rss_mib, pinned_mib;
	unsigned fds;
	double quiet_cpu, cpu; /* percent of a core, before the attack and once it is ready */
	double woke_late;      /* the longest delay of this process */
	char verdict[256];
};

/* Returns how many ms the pause was too long. */
static double pause_and_measure(void)
{
	const uint64_t begun = clock_ns();
	pause_ms(LOOK_MS);
	return (double)(clock_ns() - begun) / 1e6 - LOOK_MS;
}

/* Watches until the time is over, or the attack is ready. False: the daemon has ended. */
static bool watch(struct target *t, const struct attacker *until_ready, double seconds,
		  struct outcome *r)
{
	const uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9);
	while (clock_ns() < end) {
		if (!target_watch(t, false))
			return false;
		if (until_ready && until_ready->ready)
			break;
		const double late = pause_and_measure();
		if (late > r->woke_late)
			r->woke_late = late;
	}
	return true;
}

/* Watches for that long, and reports the percentage of a core that the daemon has used. */
static bool watch_cpu(struct target *t, double seconds, double *percent, struct outcome *r)
{
	const uint64_t used = target_cpu_ns(t), begin = clock_ns();
	if (!watch(t, NULL, seconds, r))
		return false;
	*percent = 100 * (double)(target_cpu_ns(t) - used) / (double)(clock_ns() - begin);
	return true;
}

static bool run(const struct attack *attack, struct shared *s, struct target *t,
		const struct options *o, struct outcome *r)
{
	if (attack->cpu_percent && !watch_cpu(t, QUIET_MS / 1e3, &r->quiet_cpu, r))
		return false;
	pid_t pid = fork();
	if (!pid) {
		if (attack->fuse && !slow_file_mount(&s->attacker, t->files))
			_exit(1);
		become_attacker();
		attack->run(&s->attacker);
		_exit(0);
	}
	bool alive = watch(t, &s->attacker, PREPARE_S, r) && watch_cpu(t, o->seconds, &r->cpu, r);
	kill(-pid, SIGKILL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	uint64_t dead = clock_ns();
	alive = alive && watch(t, NULL, AFTER_MS / 1e3, r);
	/* Waits to learn how long each delayed operation takes. */
	for (int i = 0; i < HELD_UP_S * 10 && alive && bystanders_held_up(&s->bystanders, dead);
	     i++)
		alive = watch(t, NULL, 0.1, r);
	return alive;
}

__attribute__((format(printf, 2, 3))) static void judge(struct outcome *r, const char *format, ...)
{
	size_t n = strlen(r->verdict);
	va_list args;
	if (n)
		n += (size_t)snprintf(r->verdict + n, sizeof(r->verdict) - n, "; ");
	if (n >= sizeof(r->verdict))
		return;
	va_start(args, format);
	vsnprintf(r->verdict + n, sizeof(r->verdict) - n, format, args);
	va_end(args);
}

static void conclude(const struct attack *attack, struct shared *s, const struct target *t,
		     const struct options *o, struct outcome *r)
{
	const struct bystanders *b = &s->bystanders;
	const double more = WAKES * r->woke_late;
	if (!r->survived && WIFSIGNALED(t->status))
		judge(r, "the daemon ended by signal %d", WTERMSIG(t->status));
	else if (!r->survived)
		judge(r, "the daemon exited with %d", WEXITSTATUS(t->status));
	if (s->attacker.harm[0])
		judge(r, "%s", s->attacker.harm);
	if (r->survived && (double)t->ending_ns / 1e6 > END_LIMIT_MS * o->slack)
		judge(r, "SIGTERM did not end the daemon within %d ms", END_LIMIT_MS);
	if (r->survived && !s->attacker.ready)
		judge(r, "the attack was not ready in %d s", PREPARE_S);
	if (b->reduce.failure[0])
		judge(r, "%s", b->reduce.failure);
	if (b->request.failure[0])
		judge(r, "%s", b->request.failure);
	if (r->reduce_worst > REDUCE_LIMIT_MS * o->slack + more)
		judge(r, "AllReduce late");
	if (r->request_worst > REQUEST_LIMIT_MS * o->slack + more)
		judge(r, "%s late", b->request.worst_of);
	if (r->beat_gap > BEAT_MS + BEAT_LIMIT_MS * o->slack + more)
		judge(r, "the watchdog starved");
	if (attack->pinned_mib && r->pinned_mib > attack->pinned_mib)
		judge(r, "more than %u MiB of memory", attack->pinned_mib);
	/* Not multiplied by the slack, because load does not increase CPU time. */
	if (attack->cpu_percent && r->cpu > r->quiet_cpu + attack->cpu_percent)
		judge(r, "idle, it costs more than %u %% of a core", attack->cpu_percent);
}

static struct outcome try_attack(const struct attack *attack, struct shared *s,
				 const struct options *o)
{
	struct outcome r = {0};
	struct target t;
	memset(s, 0, sizeof(*s));
	struct attack how = *attack;
	how.unprivileged |= o->unprivileged;
	if (!target_start(&t, o->daemon, &how) || !bystanders_start(&s->bystanders, &t, how.gpus) ||
	    !target_limit(&t, &how)) {
		judge(&r, "the daemon or the bystanders did not start");
		target_show_log(&t);
		target_stop(&t);
		bystanders_stop(&s->bystanders);
		return r;
	}
	s->attacker.socket = t.socket;
	bystanders_reset(&s->bystanders);
	target_watch(&t, true);
	r.survived = run(attack, s, &t, o, &r);
	r.reduce_open = gauge_close(&s->bystanders.reduce);
	r.request_open = gauge_close(&s->bystanders.request);
	if (o->logs || !r.survived)
		target_show_log(&t);
	target_stop(&t); /* while the bystanders still have everything */
	bystanders_stop(&s->bystanders);
	r.reduce_p50 = gauge_percentile_ms(&s->bystanders.reduce, 0.5);
	r.reduce_p99 = gauge_percentile_ms(&s->bystanders.reduce, 0.99);
	r.reduce_worst = (double)s->bystanders.reduce.worst / 1e6;
	r.request_worst = (double)s->bystanders.request.worst / 1e6;
	r.beat_gap = (double)t.longest_gap / 1e6;
	r.rss_mib = t.rss_kib / 1024;
	r.pinned_mib = (t.shared_kib - t.shared_before_kib) / 1024;
	r.fds = t.fds;
	conclude(attack, s, &t, o, &r);
	return r;
}

/* ---- Output ---- */

static void print_head(const struct options *o)
{
	printf("# One user against the rest: %.1f s each; limits: AllReduce of 16 B %.0f ms, "
	       "requests "
	       "%.0f ms, beats every %d ms at most %.0f ms late\n",
	       o->seconds, REDUCE_LIMIT_MS * o->slack, REQUEST_LIMIT_MS * o->slack, BEAT_MS,
	       BEAT_LIMIT_MS * o->slack);
	printf("# %19s | %26s | %9s | %8s | %5s %6s %6s %4s |\n", "", "AllReduce (ms)", "request",
	       "beat gap", "RSS", "memfds", "", "CPU");
	printf("# %-19s | %8s %8s %8s | %9s | %8s | %5s %6s %6s %4s | verdict\n", "attack",
	       "median", "p99", "worst", "worst, ms", "ms", "MiB", "+MiB", "fds", "%");
}

static void print_row(const struct attack *attack, const struct attacker *a,
		      const struct outcome *r)
{
	char reduce[16], request[16];
	snprintf(reduce, sizeof(reduce), "%s%.1f", r->reduce_open ? ">" : "", r->reduce_worst);
	snprintf(request, sizeof(request), "%s%.1f", r->request_open ? ">" : "", r->request_worst);
	printf("  %-19s | %8.3f %8.3f %8s | %9s | %8.0f | %5lu %6lu %6u %4.0f | %s", attack->name,
	       r->reduce_p50, r->reduce_p99, reduce, request, r->beat_gap, r->rss_mib,
	       r->pinned_mib, r->fds, r->cpu, r->verdict[0] ? r->verdict : "good");
	printf(" (%s", a->note);
	if (a->asked)
		printf("; %llu asked", (unsigned long long)a->asked);
	if (a->refused)
		printf(", %llu refused", (unsigned long long)a->refused);
	if (a->ended)
		printf(", %llu ended", (unsigned long long)a->ended);
	if (r->woke_late > LOOK_MS)
		printf("; the machine: %.0f ms late", r->woke_late);
	printf(")\n");
	fflush(stdout);
}

static void print_json(const struct attack *attack, const struct attacker *a,
		       const struct outcome *r, bool first)
{
	/* No text here contains quotes or backslashes, but errors could. */
	char verdict[sizeof(r->verdict)];
	snprintf(verdict, sizeof(verdict), "%s", r->verdict);
	for (char *p = verdict; *p; p++)
		if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
			*p = '\'';
	printf("%s\n {\"attack\": \"%s\", \"good\": %s, \"verdict\": \"%s\", \"survived\": %s,\n"
	       "  \"all_reduce_ms\": {\"median\": %.4f, \"p99\": %.4f, \"worst\": %.4f},\n"
	       "  \"request_worst_ms\": %.4f, \"beat_gap_ms\": %.1f, \"rss_mib\": %lu,"
	       " \"memfds_mib\": %lu, \"fds\": %u, \"cpu_percent\": %.1f,"
	       " \"woke_late_ms\": %.1f,\n"
	       "  \"note\": \"%s\", \"asked\": %llu, \"refused\": %llu, \"ended\": %llu}",
	       first ? "" : ",", attack->name, r->verdict[0] ? "false" : "true", verdict,
	       r->survived ? "true" : "false", r->reduce_p50, r->reduce_p99, r->reduce_worst,
	       r->request_worst, r->beat_gap, r->rss_mib, r->pinned_mib, r->fds, r->cpu,
	       r->woke_late, a->note, (unsigned long long)a->asked, (unsigned long long)a->refused,
	       (unsigned long long)a->ended);
	fflush(stdout);
}

static void print_list(void)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct attack *k = tables[i]; k->name; k++)
			printf("%-19s  %s\n", k->name, k->what);
}

static void print_usage(FILE *f)
{
	fprintf(f, "Usage: ncclsvc-attack [OPTION]... [ATTACK]...\n"
		   "Runs these attacks, or all, each against a private daemon, and measures what\n"
		   "another user gets meanwhile. Needs root. Exits with 0 if the rule held.\n\n"
		   "  --list           the attacks\n"
		   "  --seconds N      of each attack (2)\n"
		   "  --slack FACTOR   multiplies the limits, for a loaded machine (1)\n"
		   "  --daemon PROGRAM the daemon ($NCCLSVCD)\n"
		   "  --unprivileged   the daemon is not root's, as under systemd\n"
		   "  --json           instead of the table\n"
		   "  --logs           the daemon's log, too\n");
}

/* ---- */

static const struct attack *find(const char *name)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct attack *k = tables[i]; k->name; k++)
			if (!strcmp(k->name, name))
				return k;
	return NULL;
}

/* Returns -1 to continue, or the exit code. */
static int parse(struct options *o, int argc, char *argv[])
{
	enum { LIST, SECONDS, SLACK, DAEMON, UNPRIVILEGED, JSON, LOGS, HELP };
	static const struct option known[] = {{"list", 0, NULL, LIST},
					      {"seconds", 1, NULL, SECONDS},
					      {"slack", 1, NULL, SLACK},
					      {"daemon", 1, NULL, DAEMON},
					      {"unprivileged", 0, NULL, UNPRIVILEGED},
					      {"json", 0, NULL, JSON},
					      {"logs", 0, NULL, LOGS},
					      {"help", 0, NULL, HELP},
					      {0}};
	for (int k; (k = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		if (k == LIST) {
			print_list();
			return 0;
		}
		if (k == HELP) {
			print_usage(stdout);
			return 0;
		}
		if (k == SECONDS)
			o->seconds = strtod(optarg, NULL);
		else if (k == SLACK)
			o->slack = strtod(optarg, NULL);
		else if (k == DAEMON)
			o->daemon = optarg;
		else if (k == UNPRIVILEGED)
			o->unprivileged = true;
		else if (k == JSON)
			o->json = true;
		else if (k == LOGS)
			o->logs = true;
		else
			o->seconds = 0;
	}
	if (!(o->seconds > 0 && o->seconds <= 3600) || !(o->slack > 0)) {
		print_usage(stderr);
		return 2;
	}
	for (int i = optind; i < argc; i++)
		if (!find(argv[i])) {
			fprintf(stderr, "there is no attack '%s'; see --list\n", argv[i]);
			return 2;
		}
	if (!o->daemon || access(o->daemon, X_OK)) {
		fprintf(stderr, "--daemon, or $NCCLSVCD, must name the daemon's program\n");
		return 2;
	}
	if (geteuid() != 0) {
		fprintf(stderr, "only root can be several users\n");
		return SKIPPED;
	}
	return -1;
}

/* Returns what the attack needs and this machine lacks, or NULL. */
static const char *missing(const struct attack *attack)
{
	if (attack->gpus && !getenv("NCCLSVC_FAKE_GPUS"))
		return "NCCLSVC_FAKE_GPUS=2, and LD_LIBRARY_PATH with build/tests/fake";
	if (attack->fuse && !slow_file_possible())
		return "/dev/fuse, and the right to mount";
	return NULL;
}

static bool wanted(const char *name, int argc, char *argv[])
{
	bool good = optind == argc;
	for (int i = optind; i < argc; i++)
		good |= !strcmp(argv[i], name);
	return good;
}

int main(int argc, char *argv[])
{
	struct options o = {.daemon = getenv("NCCLSVCD"), .seconds = 2, .slack = 1};
	int code = parse(&o, argc, argv);
	if (code >= 0)
		return code;
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return 1;
	unsigned tried = 0, bad = 0, skipped = 0;
	if (o.json)
		printf("[");
	else
		print_head(&o);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct attack *k = tables[i]; k->name; k++) {
			if (!wanted(k->name, argc, argv))
				continue;
			if (missing(k)) {
				fprintf(stderr, "%s needs %s\n", k->name, missing(k));
				skipped++;
				continue;
			}
			struct outcome r = try_attack(k, s, &o);
			if (o.json)
				print_json(k, &s->attacker, &r, !tried);
			else
				print_row(k, &s->attacker, &r);
			tried++;
			bad += r.verdict[0] != 0;
		}
	if (o.json)
		printf("\n]\n");
	else
		printf("# the rule held in %u of %u attacks\n", tried - bad, tried);
	return bad ? 1 : skipped && !tried ? SKIPPED : 0;
}
