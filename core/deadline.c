#include "deadline.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static const int64_t US_PER_SECOND = 1000000;

int deadlines_init(struct deadlines *deadlines) {
  *deadlines = (struct deadlines){.armed_us = INT64_MAX};
  deadlines->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
  return deadlines->timer_fd < 0 ? -errno : 0;
}

void deadlines_finish(struct deadlines *deadlines) {
  if (deadlines->timer_fd >= 0) close(deadlines->timer_fd);
  free(deadlines->heap);
  *deadlines = (struct deadlines){.timer_fd = -1};
}

int64_t deadlines_now(const struct deadlines *deadlines) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (int64_t)now.tv_sec * US_PER_SECOND + now.tv_nsec / 1000 + deadlines->skew_us;
}

/* The timer is armed only when the earliest deadline moves nearer: an exchange whose deadline is
 * far away then costs no system call, and the price is a rare wake with nothing due. */
static void arm(struct deadlines *deadlines) {
  if (deadlines->count == 0 || deadlines->heap[0]->at_us >= deadlines->armed_us) return;
  deadlines->armed_us = deadlines->heap[0]->at_us;
  int64_t at = 1; /* long past; 0 would disarm it */
  if (deadlines->armed_us > deadlines->skew_us) at = deadlines->armed_us - deadlines->skew_us;
  struct itimerspec when = {
      .it_value = {.tv_sec = at / US_PER_SECOND, .tv_nsec = at % US_PER_SECOND * 1000}};
  timerfd_settime(deadlines->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void deadlines_advance(struct deadlines *deadlines, int64_t us) {
  deadlines->skew_us += us;
  deadlines->armed_us = INT64_MAX;
  arm(deadlines);
}

static void put(struct deadlines *deadlines, size_t index, struct deadline *deadline) {
  deadlines->heap[index] = deadline;
  deadline->place = index + 1;
}

static void sift_up(struct deadlines *deadlines, size_t index, struct deadline *moved) {
  while (index > 0) {
    size_t parent = (index - 1) / 2;
    if (deadlines->heap[parent]->at_us <= moved->at_us) break;
    put(deadlines, index, deadlines->heap[parent]);
    index = parent;
  }
  put(deadlines, index, moved);
}

static void sift_down(struct deadlines *deadlines, size_t index, struct deadline *moved) {
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= deadlines->count) break;
    if (child + 1 < deadlines->count &&
        deadlines->heap[child + 1]->at_us < deadlines->heap[child]->at_us)
      child++;
    if (moved->at_us <= deadlines->heap[child]->at_us) break;
    put(deadlines, index, deadlines->heap[child]);
    index = child;
  }
  put(deadlines, index, moved);
}

int deadline_attach(struct deadlines *deadlines, struct deadline *deadline) {
  if (deadlines->attached == deadlines->capacity) {
    size_t capacity = deadlines->capacity ? deadlines->capacity * 2 : 16;
    struct deadline **heap = realloc(deadlines->heap, capacity * sizeof(*heap));
    if (!heap) return -ENOMEM;
    deadlines->heap = heap;
    deadlines->capacity = capacity;
  }
  deadlines->attached++;
  deadline->place = 0;
  return 0;
}

void deadline_detach(struct deadlines *deadlines, struct deadline *deadline) {
  deadline_clear(deadlines, deadline);
  deadlines->attached--;
}

void deadline_set(struct deadlines *deadlines, struct deadline *deadline, int64_t at_us) {
  deadline_clear(deadlines, deadline);
  deadline->at_us = at_us;
  sift_up(deadlines, deadlines->count++, deadline);
  arm(deadlines);
}

void deadline_clear(struct deadlines *deadlines, struct deadline *deadline) {
  if (deadline->place == 0) return;
  size_t index = deadline->place - 1;
  deadline->place = 0;
  struct deadline *last = deadlines->heap[--deadlines->count];
  if (last == deadline) return;
  if (index > 0 && deadlines->heap[(index - 1) / 2]->at_us > last->at_us)
    sift_up(deadlines, index, last);
  else
    sift_down(deadlines, index, last);
}

void deadlines_run(struct deadlines *deadlines) {
  uint64_t expirations;
  ssize_t got = read(deadlines->timer_fd, &expirations, sizeof(expirations));
  (void)got; /* only empties it: what is due is asked of the clock */
  deadlines->armed_us = INT64_MAX;
  int64_t now = deadlines_now(deadlines);
  while (deadlines->count && deadlines->heap[0]->at_us <= now) {
    struct deadline *due = deadlines->heap[0];
    deadline_clear(deadlines, due);
    due->on_due(due);
  }
  arm(deadlines);
}
