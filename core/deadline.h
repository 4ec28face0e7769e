/* deadline.h: instants on the suspend-aware clock, in one heap on one timerfd.
 *
 * Instants are microseconds of CLOCK_BOOTTIME plus a skew that tests may add: a test makes an hour
 * pass by moving the skew, and nothing in the host can tell. See timerfd_create(2),
 * clock_gettime(2).
 *
 * Ownership: a struct deadline lives in its owner's memory, is attached once and detached before
 * that memory goes. Attaching reserves the heap's place, so that setting one can never fail.
 * Errors: negative errno values. Threads: the loop's thread only.
 */
#ifndef BERTH_DEADLINE_H
#define BERTH_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct deadline {
  int64_t at_us;
  size_t place;                              /* in the heap, from 1; 0: not set */
  void (*on_due)(struct deadline *deadline); /* it is not set any more when this is called */
};

struct deadlines {
  struct deadline **heap;
  size_t count, capacity, attached;
  int64_t armed_us; /* what the timerfd waits for; INT64_MAX: nothing */
  int64_t skew_us;
  int timer_fd; /* readable when something may be due; the owner polls it */
};

int deadlines_init(struct deadlines *deadlines);
void deadlines_finish(struct deadlines *deadlines);

int64_t deadlines_now(const struct deadlines *deadlines);

/* Moves the clock forward by `us` and makes what that passes due on the next turn of the loop. */
void deadlines_advance(struct deadlines *deadlines, int64_t us);

int deadline_attach(struct deadlines *deadlines, struct deadline *deadline);
void deadline_detach(struct deadlines *deadlines, struct deadline *deadline);
void deadline_set(struct deadlines *deadlines, struct deadline *deadline, int64_t at_us);
void deadline_clear(struct deadlines *deadlines, struct deadline *deadline);

/* Call when timer_fd is readable: calls on_due for everything due, earliest first, then arms anew.
 */
void deadlines_run(struct deadlines *deadlines);

#endif
