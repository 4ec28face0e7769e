/* timers.h: deadlines that are known to Lua by an integer. Part of core.h.
 * Ownership: the table is the core's. A slot's number is used again with another id. */
#ifndef BERTH_TIMERS_H
#define BERTH_TIMERS_H

#include "core.h"

int timers_create(struct core *core);
void timers_destroy(struct core *core);

/* The event was taken by Lua: its slot is free again. */
void timers_taken(struct core *core, struct event *event);

#endif
