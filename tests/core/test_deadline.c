/* The heap of deadlines against a plain list, and the price of setting one: the timer is set anew
 * only when the earliest moves nearer. */
#include "check.h"
#include "deadline.h"
#include <poll.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

static int armings; /* calls of timerfd_settime */

/* Stands before glibc's, counts, and does the same. */
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old) {
  armings++;
  return (int)syscall(SYS_timerfd_settime, fd, flags, value, old);
}

enum { ALARMS = 64 };

static const int64_t SECOND = 1000000, MINUTE = 60000000, HOUR = 3600000000;

static struct deadlines deadlines;

struct alarm {
  struct deadline deadline; /* first */
  int64_t at_us;
  int64_t again_us; /* set once more by its own callback, if over 0 */
  int fired;
  bool set;
};

static struct alarm alarms[ALARMS];
static int64_t last_fired_us;

static void on_due(struct deadline *deadline) {
  struct alarm *alarm = (struct alarm *)deadline;
  CHECK_INT(0, deadline->place);
  CHECK(alarm->set);
  CHECK(alarm->at_us <= deadlines_now(&deadlines));
  CHECK(alarm->at_us >= last_fired_us); /* the earliest first */
  last_fired_us = alarm->at_us;
  alarm->set = false;
  alarm->fired++;
  if (alarm->again_us <= 0) return;
  alarm->set = true;
  alarm->at_us = alarm->again_us;
  alarm->again_us = 0;
  if (alarm->at_us < last_fired_us) last_fired_us = alarm->at_us; /* it may be the next */
  deadline_set(&deadlines, deadline, alarm->at_us);
}

static void set(struct alarm *alarm, int64_t at_us) {
  alarm->set = true;
  alarm->at_us = at_us;
  deadline_set(&deadlines, &alarm->deadline, at_us);
}

static void clear(struct alarm *alarm) {
  alarm->set = false;
  deadline_clear(&deadlines, &alarm->deadline);
}

static void begin(int count) {
  CHECK_INT(0, deadlines_init(&deadlines));
  memset(alarms, 0, sizeof alarms);
  for (int i = 0; i < count; i++) {
    alarms[i].deadline.on_due = on_due;
    CHECK_INT(0, deadline_attach(&deadlines, &alarms[i].deadline));
  }
  last_fired_us = INT64_MIN;
  armings = 0;
}

static void end(int count) {
  for (int i = 0; i < count; i++)
    deadline_detach(&deadlines, &alarms[i].deadline);
  CHECK_INT(0, deadlines.count);
  CHECK_INT(0, deadlines.attached);
  deadlines_finish(&deadlines);
}

static bool readable(int wait_ms) {
  struct pollfd timer = {.fd = deadlines.timer_fd, .events = POLLIN};
  return poll(&timer, 1, wait_ms) == 1;
}

static void run(void) {
  last_fired_us = INT64_MIN;
  deadlines_run(&deadlines);
}

/* -- against the model ------------------------------------------------------------------------- */

static void check_against_model(void) {
  size_t count = 0;
  int64_t earliest = INT64_MAX;
  for (int i = 0; i < ALARMS; i++) {
    CHECK_INT(alarms[i].set, alarms[i].deadline.place != 0);
    if (!alarms[i].set) continue;
    CHECK(deadlines.heap[alarms[i].deadline.place - 1] == &alarms[i].deadline);
    CHECK_INT(alarms[i].at_us, alarms[i].deadline.at_us);
    count++;
    if (alarms[i].at_us < earliest) earliest = alarms[i].at_us;
  }
  CHECK_INT(count, deadlines.count);
  if (count == 0) return;
  CHECK_INT(earliest, deadlines.heap[0]->at_us);
  CHECK(deadlines.armed_us <= earliest); /* else it would be late */
}

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32) % bound;
}

TEST(is_the_same_as_a_list_under_random_work) {
  begin(ALARMS);
  for (int step = 0; step < 20000; step++) {
    struct alarm *alarm = &alarms[random_below(ALARMS)];
    int64_t now = deadlines_now(&deadlines);
    switch (random_below(8)) {
      case 0:
        deadlines_advance(&deadlines, random_below(3000000));
        run();
        now = deadlines_now(&deadlines);
        for (int i = 0; i < ALARMS; i++) /* nothing due is left, bar what passed since then */
          CHECK(!alarms[i].set || alarms[i].at_us > now - SECOND);
        break;
      case 1:
      case 2: clear(alarm); break;
      case 3: alarm->again_us = now + random_below(10000000); break;
      default: set(alarm, now + random_below(20) * SECOND / 2); break; /* many are the same */
    }
    check_against_model();
  }
  end(ALARMS);
}

/* -- the clock --------------------------------------------------------------------------------- */

TEST(wakes_by_itself) {
  begin(1);
  CHECK(!readable(0));
  set(&alarms[0], deadlines_now(&deadlines) + 2000);
  CHECK(readable(20000));
  run();
  CHECK_INT(1, alarms[0].fired);
  CHECK(!readable(0));
  end(1);
}

TEST(takes_what_lies_in_the_past_for_due) {
  static const int64_t past[] = {INT64_MIN, -1, 0, 1};
  begin(1);
  for (int i = 0; i < 8; i++) {
    if (i == 4) deadlines_advance(&deadlines, SECOND); /* no difference with a skew */
    set(&alarms[0], past[i % 4]);
    CHECK(readable(20000));
    run();
    CHECK_INT(i + 1, alarms[0].fired);
  }
  end(1);
}

TEST(makes_an_hour_pass) {
  begin(2);
  int64_t now = deadlines_now(&deadlines);
  set(&alarms[0], now + HOUR);
  set(&alarms[1], INT64_MAX);
  CHECK(!readable(0));
  deadlines_advance(&deadlines, HOUR - 10 * MINUTE);
  CHECK(!readable(0));
  run(); /* a wake with nothing due does no harm */
  CHECK_INT(0, alarms[0].fired);
  deadlines_advance(&deadlines, 10 * MINUTE);
  CHECK(readable(20000));
  run();
  CHECK_INT(1, alarms[0].fired);
  CHECK_INT(0, alarms[1].fired);
  CHECK(deadlines_now(&deadlines) >= now + HOUR);
  set(&alarms[0], deadlines_now(&deadlines) + 1000); /* the skew counts for new ones too */
  CHECK(readable(20000));
  end(2);
}

TEST(runs_what_its_callbacks_make_due_and_leaves_the_rest) {
  begin(2);
  int64_t now = deadlines_now(&deadlines);
  set(&alarms[0], now - 10);
  set(&alarms[1], now - 5);
  alarms[0].again_us = now - 7;
  alarms[1].again_us = now + HOUR;
  run();
  CHECK_INT(2, alarms[0].fired);
  CHECK_INT(1, alarms[1].fired);
  CHECK(alarms[1].set);
  end(2);
}

/* -- the price --------------------------------------------------------------------------------- */

TEST(is_armed_only_when_the_earliest_moves_nearer) {
  begin(4);
  int64_t later = deadlines_now(&deadlines) + HOUR;
  set(&alarms[0], later);
  CHECK_INT(1, armings);
  for (int i = 0; i < 1000; i++) { /* an exchange: a deadline is set behind it, and cleared */
    set(&alarms[1], later + i);
    clear(&alarms[1]);
    set(&alarms[0], later + i % 2);
  }
  CHECK_INT(1, armings);
  set(&alarms[2], later - SECOND);
  CHECK_INT(2, armings);
  CHECK_INT(later - SECOND, deadlines.armed_us);
  clear(&alarms[2]);
  set(&alarms[2], later - 1);
  CHECK_INT(2, armings); /* still armed for the one that was cleared: a rare wake is the price */
  deadlines_advance(&deadlines, SECOND);
  CHECK_INT(3, armings);
  CHECK_INT(later - 1, deadlines.armed_us);
  clear(&alarms[0]);
  clear(&alarms[2]);
  run();
  CHECK_INT(3, armings); /* nothing to wait for */
  CHECK_INT(INT64_MAX, deadlines.armed_us);
  end(4);
}

RUN_TESTS()
