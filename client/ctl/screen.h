/* SPDX-License-Identifier: Apache-2.0
 * The terminal, while watch redraws it. */
#ifndef CTL_SCREEN_H
#define CTL_SCREEN_H

#include "base/text.h"

/* Columns of standard output; 0: not a terminal. */
unsigned screen_width(void);
/* Whether to use colours: on a terminal, if NO_COLOR is not set. */
bool screen_colour(void);

/* Uses the terminal's alternate screen. Ctrl-C and termination restore the screen and end the
 * program with code 0. */
void screen_enter(void);
/* May be called from a signal handler, and twice. */
void screen_leave(void);
/* Shows a frame: on a terminal over the last one, cut to its height with a note about the rest;
 * otherwise in full, after the last one. */
void screen_draw(struct text *frame);

#endif
