/* SPDX-License-Identifier: Apache-2.0
 * Shared by the simulations: random numbers and virtual time (time.c), and the program that runs
 * schedules (main.c). */
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
/* Calls f with arg at that time and frees arg. Skips the call if the node is lost by then (-1:
 * no node), or restarted. */
void at(uint64_t time, int node, void (*f)(void *arg), void *arg);
/* Runs the events due within that duration (0: all events). Returns false if there were too
 * many. */
bool time_run(uint64_t duration);
/* Returns the node of the current event; -1: unknown. */
int time_node(void);
void time_end(void);

/* ---- main.c ---- */

extern bool tracing;
/* The mistake planted in the simulation; 0: none. */
extern unsigned planted;

/* ---- Defined by each simulation ---- */

typedef void scenario_failed(const char *name, uint64_t seed);

struct simulated {
	const char *about;
	unsigned plants; /* one more than the highest plant */
	const char *(*plant_name)(unsigned plant);
	/* Returns 0, or 1 after reporting the failed scenarios. NULL: there are no scenarios. */
	int (*scenarios_run)(scenario_failed *say);
};
extern const struct simulated simulated;

extern char failure[512]; /* empty: none */
/* How often the node has been started; 0: it is down. */
uint32_t node_life(int node);
/* Returns false with `failure` set. */
bool schedule_run(uint64_t seed);

#endif
