/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define HOME	    "\033[H"
#define CLEAR_LINE  "\033[K"
#define CLEAR_BELOW "\033[J"

static volatile sig_atomic_t entered;

static bool size(struct winsize *w)
{
	return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, w) == 0 && w->ws_col &&
	       w->ws_row;
}

unsigned screen_width(void)
{
	struct winsize w;
	return size(&w) ? w.ws_col : 0;
}

bool screen_colour(void)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
	return isatty(STDOUT_FILENO) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

static void say(const char *s, size_t n)
{
	ssize_t written = write(STDOUT_FILENO, s, n);
	(void)written;
}

void screen_leave(void)
{
	static const char normal[] = "\033[0m\033[?25h\033[?1049l";
	if (!entered)
		return;
	entered = 0;
	say(normal, sizeof(normal) - 1);
}

static void leave(int signal)
{
	(void)signal;
	screen_leave();
	_exit(0);
}

void screen_enter(void)
{
	static const char page[] = "\033[?1049h\033[?25l" HOME CLEAR_BELOW;
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = leave};
	struct winsize w;
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaddset(&action.sa_mask, signals[i]);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaction(signals[i], &action, NULL);
	if (!size(&w))
		return;
	entered = 1;
	say(page, sizeof(page) - 1);
}

/* Number of rows that a line of this many bytes takes, without colours. */
static size_t rows(const char *line, size_t n, unsigned columns)
{
	size_t width = 0;
	for (size_t i = 0; i < n; i++) {
		if (line[i] == '\033') {
			while (i < n && line[i] != 'm')
				i++;
			continue;
		}
		width += ((unsigned char)line[i] & 0xc0) != 0x80;
	}
	return width ? (width + columns - 1) / columns : 1;
}

void screen_draw(struct text *frame)
{
	struct winsize w;
	struct text out = TEXT_INIT(STDOUT_FILENO);
	size_t at = 0, used = 0, lines = 0;
	if (!entered || !size(&w)) {
		frame->fd = STDOUT_FILENO;
		text_flush(frame, true);
		frame->fd = -1;
		return;
	}
	text_add(&out, HOME);
	while (at < frame->len) {
		const char *end = memchr(frame->at + at, '\n', frame->len - at);
		size_t n = end ? (size_t)(end - frame->at) - at : frame->len - at;
		used += rows(frame->at + at, n, w.ws_col);
		if (used + 1 > w.ws_row)
			break;
		text_addn(&out, frame->at + at, n);
		text_add(&out, CLEAR_LINE "\r\n");
		at += n + 1;
	}
	for (size_t i = at; i < frame->len; i++)
		lines += frame->at[i] == '\n';
	if (lines)
		text_printf(&out, "... and %zu more lines" CLEAR_LINE, lines);
	text_add(&out, CLEAR_BELOW);
	text_flush(&out, true);
	frame->error = out.error;
	text_free(&out);
}
