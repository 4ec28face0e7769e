#include "timers.h"
#include <errno.h>
#include <stdlib.h>

/* A slot is free, waiting (its deadline is set) or due (its event is queued). */
struct timer {
  struct deadline deadline; /* first: on_due gets its address */
  struct core *core;
  struct timer *next_free;
  uint64_t uses;
  uint32_t index;
  struct event due;
};

struct core_timers {
  struct timer **slots;
  uint32_t count, capacity;
  struct timer *free_list;
};

int timers_create(struct core *core) {
  core->timers = calloc(1, sizeof(*core->timers));
  return core->timers ? 0 : -ENOMEM;
}

void timers_destroy(struct core *core) {
  if (!core->timers) return;
  for (uint32_t i = 0; i < core->timers->count; i++) {
    struct timer *timer = core->timers->slots[i];
    events_drop(&core->events, &timer->due);
    deadline_detach(&core->deadlines, &timer->deadline);
    free(timer);
  }
  free(core->timers->slots);
  free(core->timers);
  core->timers = NULL;
}

static uint64_t id_of(const struct timer *timer) { return timer->uses << 32 | timer->index; }

static void on_due(struct deadline *deadline) {
  struct timer *timer = (struct timer *)deadline;
  timer->due.id = id_of(timer);
  events_add(&timer->core->events, &timer->due);
}

static bool grow(struct core_timers *timers) {
  if (timers->count < timers->capacity) return true;
  uint32_t capacity = timers->capacity ? timers->capacity * 2 : 16;
  struct timer **slots = realloc(timers->slots, capacity * sizeof(struct timer *));
  if (!slots) return false;
  timers->slots = slots;
  timers->capacity = capacity;
  return true;
}

static struct timer *new_timer(struct core *core) {
  struct core_timers *timers = core->timers;
  if (!grow(timers)) return NULL;
  struct timer *timer = calloc(1, sizeof(*timer));
  if (!timer) return NULL;
  if (deadline_attach(&core->deadlines, &timer->deadline)) {
    free(timer);
    return NULL;
  }
  timer->deadline.on_due = on_due;
  timer->core = core;
  timer->index = timers->count;
  timer->due = (struct event){.kind = EVENT_DEADLINE, .embedded = true};
  timers->slots[timers->count++] = timer;
  return timer;
}

static struct timer *take_timer(struct core *core) {
  struct timer *timer = core->timers->free_list;
  if (!timer) return new_timer(core);
  core->timers->free_list = timer->next_free;
  return timer;
}

static void give_back(struct timer *timer) {
  timer->next_free = timer->core->timers->free_list;
  timer->core->timers->free_list = timer;
}

uint64_t core_set_deadline(struct core *core, int64_t at_us) {
  struct timer *timer = take_timer(core);
  if (!timer) return 0;
  timer->uses = (timer->uses + 1) & 0x7fffffff;
  if (timer->uses == 0) timer->uses = 1;
  deadline_set(&core->deadlines, &timer->deadline, at_us);
  return id_of(timer);
}

void core_clear_deadline(struct core *core, uint64_t id) {
  uint32_t index = (uint32_t)id;
  if (index >= core->timers->count) return;
  struct timer *timer = core->timers->slots[index];
  if (id_of(timer) != id || (timer->deadline.place == 0 && !timer->due.queued)) return;
  deadline_clear(&core->deadlines, &timer->deadline);
  events_drop(&core->events, &timer->due);
  give_back(timer);
}

void timers_taken(struct core *core, struct event *event) {
  struct timer *timer = core->timers->slots[(uint32_t)event->id];
  events_drop(&core->events, event);
  give_back(timer);
}
