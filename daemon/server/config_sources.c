/* SPDX-License-Identifier: Apache-2.0 */
#include "config_sources.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"
#include "build_config.h"
#include "config_table.h"
#include "proto/fdio.h"

#define ENV_PREFIX "NCCLSVCD_"
#define NAME_BYTES 64
#define FILE_BYTES (1 << 20) /* at most */
#define ERRORS_MAX 100	     /* per file; then the rest is not read */

struct load {
	struct config *c;
	FILE *err;
	unsigned errors;
	const char *file; /* --config or NCCLSVCD_CONFIG; NULL: the default */
	bool help, version, check, quiet;
};

struct ini_source {
	struct load *l;
	FILE *stream;
	int line;
	int given[CONFIG_KEYS_MAX]; /* line of each key's first use */
};

__attribute__((format(printf, 2, 3))) static void complain(struct load *l, const char *format, ...)
{
	va_list args;

	l->errors++;
	fprintf(l->err, "ncclsvcd: ");
	va_start(args, format);
	vfprintf(l->err, format, args);
	va_end(args);
	fputc('\n', l->err);
}

static void option_name(const char *key, char *buf, size_t size)
{
	snprintf(buf, size, "--%s", key);
	for (char *p = buf; *p; p++)
		if (*p == '_')
			*p = '-';
}

static void variable_name(const char *key, char *buf, size_t size)
{
	snprintf(buf, size, ENV_PREFIX "%s", key);
	for (char *p = buf; *p; p++)
		*p = (char)toupper((unsigned char)*p);
}

static void set(struct load *l, unsigned key, const char *text, enum config_source source, int line,
		const char *where)
{
	char why[256];

	if (config_key_set(l->c, key, text, why, sizeof(why))) {
		complain(l, "%s: %s", where, why);
		return;
	}
	l->c->source[key] = (unsigned char)source;
	l->c->line[key] = line;
}

/* ---- The ini file ---------------------------------------------------------------------- */

static char *read_line(char *buf, int size, void *arg)
{
	struct ini_source *s = arg;
	size_t n;
	int c;

	if (s->l->errors >= ERRORS_MAX) {
		complain(s->l, "%s:%d: too many errors: the rest is not read", s->l->c->file,
			 s->line);
		return NULL;
	}
	if (!fgets(buf, size, s->stream))
		return NULL;
	s->line++;
	n = strlen(buf);
	if (n && buf[n - 1] != '\n' && !feof(s->stream)) {
		complain(s->l, "%s:%d: the line is longer than %d bytes", s->l->c->file, s->line,
			 size - 2);
		while ((c = getc(s->stream)) != EOF && c != '\n')
			;
		buf[0] = '\0';
	}
	/* inih would take an indented line as a continuation of the previous one. */
	n = strspn(buf, " \t");
	memmove(buf, buf + n, strlen(buf + n) + 1);
	return buf;
}

/* Elsewhere, a section's keys begin with its name: data in [world] is world_data, which is also
 * accepted there. */
static int find_in(const char *section, const char *name, char *buf, size_t size)
{
	const size_t n = strlen(section);
	snprintf(buf, size, "%s", name);
	if (!n || !strcmp(section, "ncclsvcd") || (!strncmp(name, section, n) && name[n] == '_'))
		return config_key_find(name);
	snprintf(buf, size, "%s_%s", section, name);
	return config_key_find(buf);
}

/* name: as written; full: as looked up. */
static void complain_unknown(struct load *l, int line, const char *section, const char *name,
			     const char *full)
{
	const char *nearest = config_key_nearest(full);
	char hint[2 * NAME_BYTES + 64];
	if (config_key_find(name) >= 0)
		snprintf(hint, sizeof(hint), ": put it before all sections, or in [ncclsvcd]");
	else if (nearest)
		snprintf(hint, sizeof(hint), ": did you mean '%s'?", nearest);
	else
		snprintf(hint, sizeof(hint), "; ncclsvcd.conf(5) lists the keys");
	complain(l, "%s:%d: unknown key '%s'%s%s%s%s", l->c->file, line, name,
		 section[0] ? " in [" : "", section, section[0] ? "]" : "", hint);
}

static bool section_known(const char *section)
{
	return !section[0] || !strcmp(section, "ncclsvcd") || !strcmp(section, "world") ||
	       !strcmp(section, "cluster");
}

static int take_line(void *arg, const char *section, const char *name, const char *value)
{
	struct ini_source *s = arg;
	struct load *l = s->l;
	char where[PATH_MAX + NAME_BYTES], full[2 * NAME_BYTES];
	int key;

	if (!section_known(section)) {
		complain(l,
			 "%s:%d: unknown section [%s]: use [cluster], [world], [ncclsvcd] or none",
			 l->c->file, s->line, section);
		return 1;
	}
	key = find_in(section, name, full, sizeof(full));
	if (key < 0) {
		complain_unknown(l, s->line, section, name, full);
		return 1;
	}
	snprintf(where, sizeof(where), "%s:%d: %s", l->c->file, s->line, config_keys[key].name);
	if (s->given[key]) {
		complain(l, "%s: already given in line %d", where, s->given[key]);
		return 1;
	}
	s->given[key] = s->line;
	set(l, (unsigned)key, value, CONFIG_FILE, s->line, where);
	return 1;
}

static void parse(struct load *l, char *text, size_t bytes)
{
	struct ini_source s = {.l = l, .stream = fmemopen(text, bytes, "r")};
	const unsigned before = l->errors;
	const int bad = s.stream ? ini_parse_stream(read_line, &s, take_line, &s) : -1;

	if (bad > 0 && l->errors == before)
		complain(l, "%s:%d: not 'key = value', a [section] or a comment", l->c->file, bad);
	else if (bad < 0)
		complain(l, "%s: out of memory", l->c->file);
	if (s.stream)
		fclose(s.stream);
}

static void read_file(struct load *l, char *const envp[])
{
	struct config *c = l->c;
	char *text;
	ssize_t n;

	if (l->file) {
		if (!l->file[0]) {
			complain(l, "--config: the path is empty");
			return;
		}
		if (strlen(l->file) >= sizeof(c->file)) {
			complain(l, "--config: the path is too long");
			return;
		}
		snprintf(c->file, sizeof(c->file), "%s", l->file);
	} else if (paths_default_config(c->file, sizeof(c->file), geteuid(), envp)) {
		c->file[0] = '\0';
		return;
	}
	text = malloc(FILE_BYTES + 1);
	n = text ? svc_read_file(c->file, text, FILE_BYTES + 1) : -ENOMEM;
	if (n > FILE_BYTES)
		complain(l, "%s: the file is longer than %d bytes", c->file, FILE_BYTES);
	else if (n >= 0)
		parse(l, text, (size_t)n);
	else if (l->file || n != -ENOENT)
		complain(l, "%s: %s", c->file,
			 n == -EISDIR ? "it is not a regular file" : strerror((int)-n));
	if (n < 0)
		c->file[0] = '\0';
	free(text);
}

/* ---- The command line ------------------------------------------------------------------ */

enum { OPT_CONFIG = 256, OPT_CHECK, OPT_QUIET, OPT_HELP, OPT_VERSION, OPT_KEY };

/* Writes the options that an abbreviation could mean to buf. False: there are not several. */
static bool could_be(const struct option *options, const char *arg, char *buf, size_t size)
{
	const size_t length = strcspn(arg + 2, "=");
	size_t at = 0;
	unsigned n = 0;

	for (; options->name; options++) {
		if (!length || strncmp(options->name, arg + 2, length))
			continue;
		at += (size_t)snprintf(buf + at, size - at, "%s--%s", n++ ? ", " : "",
				       options->name);
		if (at >= size)
			at = size - 1;
	}
	return n > 1;
}

static void unknown_option(struct load *l, const struct option *options, const char *arg)
{
	char name[NAME_BYTES], option[NAME_BYTES + 2], several[512];
	const char *nearest = NULL;

	if (!strncmp(arg, "--", 2)) {
		if (could_be(options, arg, several, sizeof(several))) {
			complain(l, "ambiguous option %.*s: %s", (int)strcspn(arg, "="), arg,
				 several);
			return;
		}
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
		nearest = config_key_nearest(name);
	}
	if (nearest)
		option_name(nearest, option, sizeof(option));
	complain(l, "unknown option %.*s%s%s%s", (int)strcspn(arg, "="), arg,
		 nearest ? ": did you mean " : "", nearest ? option : "",
		 nearest ? "?" : "; --help lists the options");
}

/* With apply false, only notes --config and the options without value. */
static void read_options(struct load *l, int argc, char *argv[], bool apply)
{
	struct option options[CONFIG_KEYS_MAX + 5];
	char names[CONFIG_KEYS_MAX][NAME_BYTES];
	unsigned n = 0;
	int opt;

	for (; n < config_keys_n; n++) {
		option_name(config_keys[n].name, names[n], sizeof(names[n]));
		options[n] =
			(struct option){names[n] + 2, required_argument, NULL, OPT_KEY + (int)n};
	}
	options[n++] = (struct option){"config", required_argument, NULL, OPT_CONFIG};
	options[n++] = (struct option){"check-config", no_argument, NULL, OPT_CHECK};
	options[n++] = (struct option){"quiet", no_argument, NULL, OPT_QUIET};
	options[n++] = (struct option){"help", no_argument, NULL, OPT_HELP};
	options[n++] = (struct option){"version", no_argument, NULL, OPT_VERSION};
	options[n] = (struct option){0};

	optind = 0; /* glibc: start over, even after another argv */
	opterr = 0;
	while ((opt = getopt_long(argc, argv, ":hV", options, NULL)) != -1) {
		switch (opt) {
		case OPT_CONFIG:
			l->file = optarg;
			break;
		case OPT_CHECK:
			l->check = true;
			break;
		case OPT_QUIET:
			l->quiet = true;
			break;
		case OPT_HELP:
		case 'h':
			l->help = true;
			break;
		case OPT_VERSION:
		case 'V':
			l->version = true;
			break;
		case ':':
			if (apply)
				complain(l, "%s needs a value", argv[optind - 1]);
			break;
		case '?':
			if (!apply)
				break;
			if (optopt >= 256)
				complain(l, "%.*s takes no value",
					 (int)strcspn(argv[optind - 1], "="), argv[optind - 1]);
			else if (optopt)
				complain(l, "unknown option -%c; --help lists the options", optopt);
			else
				unknown_option(l, options, argv[optind - 1]);
			break;
		default:
			if (apply)
				set(l, (unsigned)(opt - OPT_KEY), optarg, CONFIG_OPTION, 0,
				    names[opt - OPT_KEY]);
		}
	}
	for (; apply && optind < argc; optind++)
		complain(l, "unexpected argument '%s'; --help lists the options", argv[optind]);
}

/* ---- The environment ------------------------------------------------------------------- */

static void read_environment(struct load *l, char *const envp[])
{
	char variable[NAME_BYTES + sizeof(ENV_PREFIX)], where[sizeof(variable)];

	for (; *envp; envp++) {
		const char *equals = strchr(*envp, '=');
		const char *nearest;
		int key = -1;

		if (strncmp(*envp, ENV_PREFIX, strlen(ENV_PREFIX)) || !equals)
			continue;
		snprintf(where, sizeof(where), "%.*s", (int)(equals - *envp), *envp);
		if (!strcmp(where, ENV_PREFIX "CONFIG"))
			continue;
		for (unsigned i = 0; i < config_keys_n && key < 0; i++) {
			variable_name(config_keys[i].name, variable, sizeof(variable));
			if (!strcmp(where, variable))
				key = (int)i;
		}
		if (key >= 0) {
			set(l, (unsigned)key, equals + 1, CONFIG_ENVIRONMENT, 0, where);
			continue;
		}
		nearest = config_key_nearest(where + strlen(ENV_PREFIX));
		if (nearest)
			variable_name(nearest, variable, sizeof(variable));
		complain(l, "unknown environment variable %s%s%s%s", where,
			 nearest ? ": did you mean " : "", nearest ? variable : "",
			 nearest ? "?" : "; ncclsvcd.conf(5) lists the keys");
	}
}

/* ---- Output ---------------------------------------------------------------------------- */

static void print_help(FILE *out)
{
	char option[NAME_BYTES], allowed[128], value[128];
	struct config c = {0};

	fprintf(out,
		"Usage: ncclsvcd [OPTION]...\n"
		"The node's collective service: it owns communicators and runs the tasks that\n"
		"clients submit over its socket.\n\n"
		"Each option is also a key of the configuration file (with underscores) and an\n"
		"environment variable (NCCLSVCD_LOG_LEVEL for --log-level). The command line\n"
		"overrides the file, and the environment overrides both.\n\n");
	for (unsigned i = 0; i < config_keys_n; i++) {
		config_key_reset(&c, i);
		option_name(config_keys[i].name, option, sizeof(option));
		fprintf(out, "  %s VALUE\n        %s%s\n        %s", option, config_keys[i].help,
			config_keys[i].reloadable ? " (SIGHUP)" : "",
			config_key_allowed(i, allowed, sizeof(allowed)));
		config_key_format(&c, i, value, sizeof(value));
		if (value[0])
			fprintf(out, "; default %s", value);
		fputc('\n', out);
	}
	fprintf(out,
		"\n"
		"  --config FILE    read this file instead of the default one\n"
		"  --check-config   print the effective values and their sources, and exit\n"
		"  --quiet          with --check-config: print errors only\n"
		"  --help, -h       print this and exit\n"
		"  --version, -V    print the version and exit\n\n"
		"Options marked (SIGHUP) may change while the daemon runs: change the file, then\n"
		"send SIGHUP. See ncclsvcd(8) and ncclsvcd.conf(5).\n");
}

/* Prints every key with its value and source, as a valid ini file. */
static void print(const struct config *c, FILE *out)
{
	char value[128], name[NAME_BYTES];
	int widest = 0;

	fprintf(out, "; ncclsvcd %s; file: %s\n", NCCLSVC_VERSION_STRING,
		c->file[0] ? c->file : "none");
	for (unsigned i = 0; i < config_keys_n; i++)
		if ((int)strlen(config_keys[i].name) > widest)
			widest = (int)strlen(config_keys[i].name);
	for (unsigned i = 0; i < config_keys_n; i++) {
		config_key_format(c, i, value, sizeof(value));
		if (!value[0]) { /* an inherited socket has no path of its own */
			fprintf(out, "; %s is passed by systemd\n", config_keys[i].name);
			continue;
		}
		fprintf(out, "%-*s = %-24s ; from ", widest, config_keys[i].name, value);
		switch (c->source[i]) {
		case CONFIG_FILE:
			fprintf(out, "the file, line %d\n", c->line[i]);
			break;
		case CONFIG_OPTION:
			option_name(config_keys[i].name, name, sizeof(name));
			fprintf(out, "%s\n", name);
			break;
		case CONFIG_ENVIRONMENT:
			variable_name(config_keys[i].name, name, sizeof(name));
			fprintf(out, "%s\n", name);
			break;
		default:
			fprintf(out, "default\n");
		}
	}
}

/* ---- All together ---------------------------------------------------------------------- */

/* A socket passed by systemd needs no path. */
static bool socket_is_passed(char *const envp[])
{
	const char *pid = paths_env(envp, "LISTEN_PID");

	return paths_env(envp, "LISTEN_FDS") && pid && strtol(pid, NULL, 10) == (long)getpid();
}

static void load_all(struct load *l, int argc, char *argv[], char *const envp[])
{
	const char *file = paths_env(envp, ENV_PREFIX "CONFIG");
	char why[256];

	*l->c = (struct config){0};
	for (unsigned i = 0; i < config_keys_n; i++)
		config_key_reset(l->c, i);
	read_options(l, argc, argv, false);
	if (l->help || l->version)
		return;
	if (file)
		l->file = file;
	read_file(l, envp);
	read_options(l, argc, argv, true);
	read_environment(l, envp);
	if (!l->c->socket[0] && !l->errors && !socket_is_passed(envp) &&
	    paths_default_socket(l->c->socket, sizeof(l->c->socket), geteuid(), envp, why,
				 sizeof(why)))
		complain(l, "socket: %s", why);
}

int config_load(struct config *c, int argc, char *argv[], char *const envp[], FILE *out, FILE *err)
{
	struct load l = {.c = c, .err = err};

	load_all(&l, argc, argv, envp);
	if (l.help)
		print_help(out);
	else if (l.version)
		fprintf(out, "ncclsvcd %s\n", NCCLSVC_VERSION_STRING);
	else if (l.errors)
		return 2;
	else if (!l.check)
		return -1;
	else if (!l.quiet)
		print(c, out);
	return 0;
}

static void add_name(char *list, size_t size, const char *name)
{
	size_t n = strlen(list);

	snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

int config_reload(struct config *c, int argc, char *argv[], char *const envp[], FILE *err,
		  struct config_changes *changes)
{
	struct config fresh;
	struct load l = {.c = &fresh, .err = err};

	*changes = (struct config_changes){0};
	load_all(&l, argc, argv, envp);
	if (l.errors)
		return -1;
	memcpy(c->file, fresh.file, sizeof(c->file));
	for (unsigned i = 0; i < config_keys_n; i++) {
		bool equal = config_key_equal(c, &fresh, i);

		if (!equal && !config_keys[i].reloadable) {
			add_name(changes->restart, sizeof(changes->restart), config_keys[i].name);
			continue;
		}
		if (!equal)
			add_name(changes->applied, sizeof(changes->applied), config_keys[i].name);
		config_key_copy(c, &fresh, i);
	}
	return 0;
}
