/* event.h: what the loop has to tell Lua, queued until Lua asks.
 *
 * Callbacks of the loop never call Lua: they append an event, and after the turn Lua takes them one
 * by one (lua_core.c). An error or a refused allocation in Lua can therefore never unwind through
 * the loop, and an event is removed only once Lua has all of it.
 *
 * Ownership: an event is allocated by event_create, with `bytes` behind it, or embedded in a
 * longer-lived object (`embedded`): events_drop frees only the former.
 */
#ifndef BERTH_EVENT_H
#define BERTH_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct worker;

enum event_kind {
  EVENT_DEADLINE,    /* id: the Lua deadline that passed */
  EVENT_INTERRUPT,   /* the process got SIGINT */
  EVENT_READY,       /* worker: its ready frame, in bytes */
  EVENT_RESPONSE,    /* worker: the payload */
  EVENT_PROGRESS,    /* worker: an event frame's payload */
  EVENT_CALL,        /* worker: a host call's payload */
  EVENT_LOST,        /* worker: gone or in breach; it is being emptied */
  EVENT_UNCONFIRMED, /* worker: its end could not be confirmed in time */
  EVENT_ENDED,       /* worker: confirmed empty; the last event of a worker */
};

struct event {
  TAILQ_ENTRY(event) link;
  enum event_kind kind;
  bool queued, embedded;
  struct worker *worker;
  uint64_t id;
  size_t size;
  unsigned char *bytes; /* right behind the struct */
};

TAILQ_HEAD(event_list, event);

/* An event with room for `size` bytes, or NULL. */
struct event *event_create(enum event_kind kind, struct worker *worker, size_t size);
void events_add(struct event_list *events, struct event *event);

/* Takes it out of the queue and frees it unless it is embedded. */
void events_drop(struct event_list *events, struct event *event);

#endif
