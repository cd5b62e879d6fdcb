/* SPDX-License-Identifier: Apache-2.0
 * What the simulations share: chance and virtual time (time.c), and the program that runs schedules
 * (main.c). */
#ifndef SCHEDULES_H
#define SCHEDULES_H

#include <stdbool.h>
#include <stdint.h>

#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)

/* ---- time.c ---- */

extern uint64_t now_ns;

void time_begin(uint64_t seed);
uint32_t below(uint32_t n);
bool chance(uint32_t percent);
uint64_t between(uint64_t low, uint64_t high);
/* Calls f with arg then, unless the node (-1: none) is lost by then; and frees arg. */
void at(uint64_t time, int node, void (*f)(void *arg), void *arg);
/* Runs what is due in that time; 0: until nothing is due any more. False: there was too much. */
bool time_run(uint64_t duration);
/* On which node something happens; -1: not known. */
int time_node(void);
void time_end(void);

/* ---- main.c ---- */

extern bool tracing;
/* A mistake that the simulation makes on purpose; 0: none. */
extern unsigned planted;

/* ---- Of each simulation ---- */

typedef void scenario_failed(const char *name, uint64_t seed);

struct simulated {
	const char *about;
	unsigned plants; /* the first that there is not */
	const char *(*plant_name)(unsigned plant);
	/* Returns 0, or 1 after it has said which ones fail. NULL: there are none. */
	int (*scenarios_run)(scenario_failed *say);
	/* As schedule_run; NULL: there are none. */
	bool (*circle_run)(uint64_t seed);
};
extern const struct simulated simulated;

extern char failure[512]; /* empty: none */
bool node_lives(int node);
/* Returns false with `failure` set. */
bool schedule_run(uint64_t seed);

#endif
