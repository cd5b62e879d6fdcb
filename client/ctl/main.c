/* SPDX-License-Identifier: Apache-2.0
 * ncclsvc-ctl: inspects a running ncclsvcd, through the library like any client. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/ids.h"
#include "base/unit.h"
#include "build_config.h"
#include "deadline.h"
#include "proto/names.h"
#include "screen.h"
#include "views/view.h"

#define FOLLOW_NS UINT64_C(500000000)
#define DRAIN_NS  UINT64_C(500000000)

struct program {
	struct ctl_args args;
	ncclsvc_session *session; /* NULL: not connected */
	/* The daemon's administration socket; empty: its path is too long. */
	char admin[sizeof(((struct sockaddr_un *)0)->sun_path)];
	ncclsvc_result
		not_admin; /* why the session uses the jobs' socket instead; OK: it does not */
	char stopped[128]; /* the state of a stopped service, which was not asked; or empty */
};

static const char *last_error(const struct program *p)
{
	return p->stopped[0] ? p->stopped : ncclsvc_last_error();
}

static enum ctl_exit complain(const struct program *p, ncclsvc_result result)
{
	fprintf(stderr, "ncclsvc-ctl: %s\n", last_error(p));
	switch (result) {
	case NCCLSVC_DAEMON_LOST:
	case NCCLSVC_TIMEOUT:
	case NCCLSVC_VERSION:
		return EXIT_UNREACHABLE;
	case NCCLSVC_NOT_FOUND:
		return EXIT_NOTHING;
	default:
		return EXIT_ERROR;
	}
}

static ncclsvc_result open_at(struct program *p, const char *socket)
{
	ncclsvc_options options = {
		.size = sizeof(options),
		.socket = socket,
		.name = "ncclsvc-ctl",
		.no_ring = true,
		/* The deadline comes first, and says more. */
		.timeout_ms = deadline_ms(p->args.timeout_ns + 1000000000),
	};
	return ncclsvc_open(&options, &p->session);
}

/* Connects to the administration socket if this user may open it. A connection to the jobs' socket
 * would start a stopped service. */
static ncclsvc_result attach(struct program *p)
{
	if (p->session)
		return NCCLSVC_OK;
	char jobs[sizeof(p->admin)];
	const bool fits = svc_socket_path(p->args.socket, jobs, sizeof(jobs));
	p->not_admin = NCCLSVC_INVALID_ARGUMENT;
	p->stopped[0] = '\0';
	if (fits && svc_admin_path(jobs, p->admin, sizeof(p->admin)))
		p->not_admin = open_at(p, p->admin);
	else
		p->admin[0] = '\0';
	if (p->not_admin == NCCLSVC_OK || p->not_admin == NCCLSVC_TIMEOUT)
		return p->not_admin;
	/* If a bus does not answer, some time is left for the daemon. */
	if (fits && unit_is_stopped(jobs, p->args.timeout_ns / 4, p->stopped, sizeof(p->stopped)))
		return NCCLSVC_DAEMON_LOST;
	return open_at(p, p->args.socket);
}

/* Explains a PERMISSION error. */
static void tell_admin(const struct program *p)
{
	if (!p->admin[0])
		return;
	fprintf(stderr, "Only %s can %s: ", p->admin,
		p->args.command == CTL_CANCEL ? "end other users' work" : "drain the daemon");
	if (p->not_admin == NCCLSVC_DAEMON_LOST)
		fputs("no daemon listens there. Run ncclsvc-ctl on the daemon's host, as root or "
		      "as the daemon's user.\n",
		      stderr);
	else
		fprintf(stderr, "user %u may not open it. Root and the daemon's user may.\n",
			geteuid());
}

static void detach(struct program *p)
{
	ncclsvc_close(p->session);
	p->session = NULL;
}

static enum ctl_exit connect_or_complain(struct program *p)
{
	ncclsvc_result result = attach(p);
	if (result == NCCLSVC_OK)
		return EXIT_GOOD;
	enum ctl_exit code = complain(p, result);
	if (result == NCCLSVC_DAEMON_LOST && !p->stopped[0])
		fputs("Start it with `ncclsvcd` or `systemctl start ncclsvcd`, or use --socket "
		      "PATH.\n",
		      stderr);
	return code;
}

static unsigned lists_of(enum ctl_command command)
{
	switch (command) {
	case CTL_SESSIONS:
		return SNAPSHOT_SESSIONS;
	case CTL_COMMS:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_MEMBERS | SNAPSHOT_NODES |
		       SNAPSHOT_MERGED;
	case CTL_TASKS:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_MEMBERS | SNAPSHOT_TASKS |
		       SNAPSHOT_NODES | SNAPSHOT_MERGED;
	case CTL_MEMORY:
		return SNAPSHOT_SESSIONS | SNAPSHOT_REGIONS;
	case CTL_STATUS:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_DEVICES | SNAPSHOT_NODES;
	case CTL_DEVICES:
		return SNAPSHOT_SESSIONS | SNAPSHOT_DEVICES;
	case CTL_WHY:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_MEMBERS | SNAPSHOT_TASKS |
		       SNAPSHOT_DEVICES | SNAPSHOT_PLANS | SNAPSHOT_NODES | SNAPSHOT_LATENESS |
		       SNAPSHOT_MERGED;
	case CTL_LATENESS:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_NODES | SNAPSHOT_LATENESS |
		       SNAPSHOT_MERGED;
	case CTL_PLAN:
		return SNAPSHOT_COMMS | SNAPSHOT_PLANS;
	case CTL_FAILURES:
		return SNAPSHOT_COMMS | SNAPSHOT_NODES | SNAPSHOT_FAILURES | SNAPSHOT_MERGED;
	case CTL_DRAIN:
	case CTL_RESUME:
		return SNAPSHOT_SESSIONS | SNAPSHOT_COMMS | SNAPSHOT_MEMBERS;
	case CTL_DUMP:
		return SNAPSHOT_MEMBERS | SNAPSHOT_OPERATIONS;
	default:
		return 0;
	}
}

static void now(char *text, size_t size)
{
	struct timespec t;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &t);
	gmtime_r(&t.tv_sec, &tm);
	size_t n = strftime(text, size, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + n, size - n, ".%03ldZ", t.tv_nsec / 1000000);
}

static const struct process *look(int32_t pid, bool closely, void *processes)
{
	return closely ? process_examine(processes, pid) : process_look(processes, pid);
}

/* The daemon's pids are valid here only if it knows this process by its own pid; from inside
 * another container it does not. */
static bool pids_are_ours(const struct snapshot *s)
{
	for (size_t i = 0; i < s->nsessions; i++)
		if (s->sessions[i].pid == getpid() && !ids_session_node(s, s->sessions[i].session))
			return true;
	return false;
}

static enum ctl_exit show_why(const struct view *v)
{
	struct why_report report;
	struct why_input in = {
		.s = v->s,
		.after_ns = v->args->after_ns,
		.look = v->look,
		.arg = v->look_arg,
	};
	why_analyse(&in, &report);
	enum ctl_exit code = report.n				 ? EXIT_STUCK
			     : view_failed_lately(&v->s->daemon) ? EXIT_FAILED
								 : EXIT_GOOD;
	view_why(v, &report);
	why_free(&report);
	return code;
}

static enum ctl_exit show_part(const struct view *v)
{
	switch (v->args->command) {
	case CTL_STATUS:
		view_status(v);
		return EXIT_GOOD;
	case CTL_SESSIONS:
		view_sessions(v);
		return EXIT_GOOD;
	case CTL_COMMS:
		view_comms(v);
		return EXIT_GOOD;
	case CTL_TASKS:
		view_tasks(v);
		return EXIT_GOOD;
	case CTL_MEMORY:
		view_memory(v);
		return EXIT_GOOD;
	case CTL_DEVICES:
		view_devices(v);
		return EXIT_GOOD;
	case CTL_PLAN:
		view_plan(v);
		return EXIT_GOOD;
	case CTL_LATENESS:
		view_lateness(v);
		return EXIT_GOOD;
	case CTL_FAILURES:
		view_failures(v);
		return EXIT_GOOD;
	case CTL_DUMP:
		if (v->args->pytorch)
			return view_dump_pytorch(v) ? EXIT_GOOD : EXIT_ERROR;
		view_dump(v);
		return EXIT_GOOD;
	default:
		return show_why(v);
	}
}

static enum ctl_exit show(struct view *v)
{
	char host[65] = "";
	struct processes processes = {0};
	gethostname(host, sizeof(host) - 1);
	v->host = host;
	v->look = pids_are_ours(v->s) ? look : NULL;
	v->look_arg = &processes;
	enum ctl_exit code = show_part(v);
	processes_free(&processes);
	return code;
}

static enum ctl_exit finish(struct text *out, enum ctl_exit code)
{
	text_flush(out, true);
	if (out->error) {
		fprintf(stderr, "ncclsvc-ctl: cannot write the output: %s\n", strerror(out->error));
		code = EXIT_ERROR;
	}
	text_free(out);
	return code;
}

static enum ctl_exit show_once(struct program *p)
{
	char time[40];
	struct snapshot s;
	struct text out = TEXT_INIT(STDOUT_FILENO);
	deadline_start(p->args.timeout_ns, p->args.socket);
	enum ctl_exit code = connect_or_complain(p);
	if (code != EXIT_GOOD)
		return code;
	ncclsvc_result result =
		snapshot_take(p->session, lists_of(p->args.command), p->args.node, &s);
	deadline_stop();
	if (result != NCCLSVC_OK)
		return complain(p, result);
	now(time, sizeof(time));
	struct view v = {.args = &p->args,
			 .s = &s,
			 .out = &out,
			 .time = time,
			 .monotonic_ns = snapshot_now_ns(),
			 .colour = screen_colour(),
			 .width = screen_width()};
	code = show(&v);
	snapshot_free(&s);
	return finish(&out, code);
}

static void title(const struct view *v)
{
	if (v->args->json)
		return;
	text_printf(v->out, "%s, every %.4g s, %s\n", ctl_command_name(v->args->command),
		    (double)v->args->interval_ns / 1e9, v->time);
}

/* A daemon that is gone may come back: report this, and keep watching. */
static enum ctl_exit unreachable_frame(const struct program *p, const struct view *v,
				       ncclsvc_result result)
{
	if (v->args->json) {
		struct json j = view_json_begin(v);
		put_string(&j, "error", ncclsvc_result_name(result), SIZE_MAX);
		put_string(&j, "text", last_error(p), SIZE_MAX);
		view_json_end(&j);
	} else {
		text_printf(v->out, "%s; trying again\n", last_error(p));
	}
	return EXIT_UNREACHABLE;
}

static enum ctl_exit watch_frame(struct program *p, struct text *frame)
{
	char time[40];
	struct snapshot s = {0};
	enum ctl_exit code;
	deadline_start(p->args.timeout_ns, p->args.socket);
	ncclsvc_result result = attach(p);
	if (result == NCCLSVC_OK)
		result = snapshot_take(p->session, lists_of(p->args.command), p->args.node, &s);
	deadline_stop();
	now(time, sizeof(time));
	struct view v = {.args = &p->args,
			 .s = &s,
			 .out = frame,
			 .time = time,
			 .monotonic_ns = snapshot_now_ns(),
			 .colour = screen_colour(),
			 .width = screen_width()};
	title(&v);
	if (result == NCCLSVC_OK) {
		code = show(&v);
		snapshot_free(&s);
	} else {
		code = unreachable_frame(p, &v, result);
		detach(p);
	}
	if (!p->args.json && !screen_width())
		text_char(frame, '\n');
	return code;
}

static void sleep_until(struct timespec *next, uint64_t interval_ns)
{
	struct timespec t;
	uint64_t ns = (uint64_t)next->tv_nsec + interval_ns;
	next->tv_sec += (time_t)(ns / 1000000000);
	next->tv_nsec = (long)(ns % 1000000000);
	clock_gettime(CLOCK_MONOTONIC, &t);
	if (t.tv_sec > next->tv_sec || (t.tv_sec == next->tv_sec && t.tv_nsec > next->tv_nsec))
		*next = t;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, NULL) == EINTR)
		;
}

static enum ctl_exit watch(struct program *p)
{
	struct timespec next;
	struct text frame = TEXT_INIT(-1);
	deadline_start(p->args.timeout_ns, p->args.socket);
	enum ctl_exit code = connect_or_complain(p);
	deadline_stop();
	if (code != EXIT_GOOD)
		return code;
	screen_enter();
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (uint64_t n = 1;; n++) {
		code = watch_frame(p, &frame);
		screen_draw(&frame);
		if (frame.error || (p->args.frames && n >= p->args.frames))
			break;
		frame.len = 0;
		sleep_until(&next, p->args.interval_ns);
	}
	screen_leave();
	frame.len = 0;
	return finish(&frame, code);
}

/* Shows past failures, then each new one until the daemon is gone. */
static enum ctl_exit follow(struct program *p)
{
	char time[40];
	uint64_t from = 0;
	struct timespec next;
	struct text out = TEXT_INIT(STDOUT_FILENO);
	deadline_start(p->args.timeout_ns, p->args.socket);
	enum ctl_exit code = connect_or_complain(p);
	if (code == EXIT_GOOD)
		ncclsvc_list_from(p->session, p->args.node);
	clock_gettime(CLOCK_MONOTONIC, &next);
	while (code == EXIT_GOOD && !out.error) {
		struct snapshot s = {0};
		deadline_start(p->args.timeout_ns, p->args.socket);
		const ncclsvc_result result =
			ncclsvc_list_failures(p->session, from, &s.failures, &s.nfailures);
		deadline_stop();
		if (result != NCCLSVC_OK) {
			code = complain(p, result);
			break;
		}
		now(time, sizeof(time));
		const struct view v = {.args = &p->args,
				       .s = &s,
				       .out = &out,
				       .time = time,
				       .colour = screen_colour(),
				       .width = screen_width()};
		if (s.nfailures)
			view_failures(&v);
		from = view_failures_next(&v, from);
		snapshot_free(&s);
		text_flush(&out, true);
		sleep_until(&next, FOLLOW_NS);
	}
	return finish(&out, code);
}

/* Its own exit codes: 0 good, 1 warnings, 2 problems. */
static int doctor(const struct ctl_args *args)
{
	static const int codes[] = {[DOCTOR_WARNING] = 1, [DOCTOR_PROBLEM] = 2};
	char time[40];
	struct doctor_facts facts;
	struct doctor_report report;
	struct text out = TEXT_INIT(STDOUT_FILENO);
	doctor_gather(&facts, args->socket, deadline_ms(args->timeout_ns));
	doctor_judge(&facts, &report);
	now(time, sizeof(time));
	struct view v = {.args = args,
			 .out = &out,
			 .time = time,
			 .colour = screen_colour(),
			 .width = screen_width()};
	view_doctor(&v, &report);
	int code = codes[doctor_worst(&report)];
	doctor_free(&report);
	doctor_facts_free(&facts);
	return finish(&out, EXIT_GOOD) == EXIT_GOOD ? code : EXIT_ERROR;
}

/* Also says who may do that. */
static enum ctl_exit complain_of_rights(struct program *p, ncclsvc_result result)
{
	const enum ctl_exit code = complain(p, result);
	if (result == NCCLSVC_PERMISSION)
		tell_admin(p);
	return code;
}

static enum ctl_exit cancel(struct program *p)
{
	char time[40];
	uint64_t cancelled = 0;
	struct text out = TEXT_INIT(STDOUT_FILENO);
	deadline_start(p->args.timeout_ns, p->args.socket);
	enum ctl_exit code = connect_or_complain(p);
	if (code != EXIT_GOOD)
		return code;
	ncclsvc_result result;
	if (p->args.target == CTL_TARGET_TASK)
		result = ncclsvc_cancel_task(p->session, p->args.id, &cancelled);
	else if (p->args.target == CTL_TARGET_COMM)
		result = ncclsvc_cancel_comm(p->session, p->args.id, &cancelled);
	else
		result = ncclsvc_cancel_session(p->session, (uint32_t)p->args.id, &cancelled);
	deadline_stop();
	if (result != NCCLSVC_OK)
		return complain_of_rights(p, result);
	now(time, sizeof(time));
	struct view v = {.args = &p->args, .out = &out, .time = time};
	view_cancelled(&v, cancelled);
	return finish(&out, EXIT_GOOD);
}

static void progress(const struct program *p, const struct snapshot *s, uint64_t waited_ns)
{
	struct text line = TEXT_INIT(STDERR_FILENO);
	const struct view v = {.args = &p->args, .s = s, .out = &line};
	if (!isatty(STDERR_FILENO))
		return;
	text_add(&line, "\r\033[K");
	if (view_drain_left(s))
		view_drain_progress(&v, waited_ns);
	text_flush(&line, true);
	text_free(&line);
}

/* Polls until no session is left or the time is over. */
static ncclsvc_result wait_for_jobs(struct program *p, struct snapshot *s)
{
	const uint64_t begin = snapshot_now_ns();
	for (;;) {
		deadline_start(p->args.timeout_ns, p->args.socket);
		const ncclsvc_result result =
			snapshot_take(p->session, lists_of(p->args.command), p->args.node, s);
		deadline_stop();
		const uint64_t waited = snapshot_now_ns() - begin;
		if (result != NCCLSVC_OK || !p->args.wait)
			return result;
		progress(p, s, waited);
		if (!view_drain_left(s) || (p->args.wait_ns && waited >= p->args.wait_ns))
			break;
		uint64_t nap = DRAIN_NS;
		if (p->args.wait_ns && p->args.wait_ns - waited < nap)
			nap = p->args.wait_ns - waited;
		snapshot_free(s);
		nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	return NCCLSVC_OK;
}

static enum ctl_exit drain(struct program *p)
{
	char time[40];
	struct snapshot s = {0};
	struct text out = TEXT_INIT(STDOUT_FILENO);
	deadline_start(p->args.timeout_ns, p->args.socket);
	enum ctl_exit code = connect_or_complain(p);
	if (code != EXIT_GOOD)
		return code;
	ncclsvc_result result = ncclsvc_drain(p->session, p->args.command == CTL_DRAIN);
	deadline_stop();
	if (result == NCCLSVC_OK)
		result = wait_for_jobs(p, &s);
	if (result != NCCLSVC_OK)
		return complain_of_rights(p, result);
	now(time, sizeof(time));
	struct view v = {
		.args = &p->args, .s = &s, .out = &out, .time = time, .colour = screen_colour()};
	view_drain(&v);
	code = p->args.wait && view_drain_left(&s) ? EXIT_LEFT : EXIT_GOOD;
	snapshot_free(&s);
	const enum ctl_exit written = finish(&out, EXIT_GOOD);
	return written == EXIT_GOOD ? code : written;
}

static int groups(const struct ctl_args *args)
{
	struct text out = TEXT_INIT(STDOUT_FILENO);
	struct view v = {
		.args = args, .out = &out, .colour = screen_colour(), .width = screen_width()};
	if (view_groups(&v))
		return finish(&out, EXIT_GOOD);
	fprintf(stderr, "ncclsvc-ctl: %s\n", ncclsvc_last_error());
	text_free(&out);
	return EXIT_USAGE;
}

static int run(struct program *p)
{
	char time[40];
	struct text out = TEXT_INIT(STDOUT_FILENO);
	switch (p->args.command) {
	case CTL_HELP:
		text_add(&out, ctl_help);
		return finish(&out, EXIT_GOOD);
	case CTL_VERSION: {
		now(time, sizeof(time));
		struct view v = {.args = &p->args, .out = &out, .time = time};
		view_version(&v, NCCLSVC_VERSION_STRING);
		return finish(&out, EXIT_GOOD);
	}
	case CTL_CANCEL:
		return cancel(p);
	case CTL_DRAIN:
	case CTL_RESUME:
		return drain(p);
	case CTL_DOCTOR:
		return doctor(&p->args);
	case CTL_GROUPS:
		return groups(&p->args);
	case CTL_FAILURES:
		return p->args.follow ? follow(p) : p->args.watch ? watch(p) : show_once(p);
	default:
		return p->args.watch ? watch(p) : show_once(p);
	}
}

int main(int argc, char **argv)
{
	char text[256];
	struct program p = {0};
	if (argc == 2 && !strcmp(argv[1], DOCTOR_DRIVER_COMMAND))
		return doctor_driver_main();
	int code = args_parse(argc, argv, &p.args, text, sizeof(text));
	if (code == EXIT_GOOD)
		code = run(&p);
	else
		fprintf(stderr, "ncclsvc-ctl: %s\n", text);
	ncclsvc_close(p.session);
	return code;
}
