/* SPDX-License-Identifier: Apache-2.0
 * The terminal, while watch redraws it. */
#ifndef CTL_SCREEN_H
#define CTL_SCREEN_H

#include "base/text.h"

/* Columns of standard output; 0: it is no terminal. */
unsigned screen_width(void);
/* Colours are wanted: a terminal, and NO_COLOR is not set. */
bool screen_colour(void);

/* Ctrl-C and termination leave the screen as it was and end the program with code 0. On a terminal,
 * draws on a page of its own. */
void screen_enter(void);
/* May be called by a signal handler, and twice. */
void screen_leave(void);
/* Shows a frame: over the last one on a terminal, cut to its height with a word about what is cut;
 * else in full, after the last one. */
void screen_draw(struct text *frame);

#endif
