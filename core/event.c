#include "event.h"
#include <stdlib.h>

struct event *event_create(enum event_kind kind, struct worker *worker, size_t size) {
  struct event *event = malloc(sizeof(*event) + size);
  if (!event) return NULL;
  *event = (struct event){
      .kind = kind, .worker = worker, .size = size, .bytes = (unsigned char *)(event + 1)};
  return event;
}

void events_add(struct event_list *events, struct event *event) {
  if (event->queued) return;
  event->queued = true;
  TAILQ_INSERT_TAIL(events, event, link);
}

void events_drop(struct event_list *events, struct event *event) {
  if (!event->queued) return;
  event->queued = false;
  TAILQ_REMOVE(events, event, link);
  if (!event->embedded) free(event);
}
