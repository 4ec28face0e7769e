/* The core without a worker: its queue of events, Lua's deadlines, turns, and folders. */
#include "check.h"
#include "core.h"
#include "timers.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

static struct core *open_core(void) {
  struct core *core = NULL;
  CHECK_INT(0, core_create(&core, "/nowhere/berth-guard"));
  return core;
}

/* libuv keeps some descriptors for the whole process. */
WARM_UP() {
  struct core *core = NULL;
  if (core_create(&core, "/nowhere/berth-guard")) abort();
  core_destroy(core);
}

/* -- events ------------------------------------------------------------------------------------ */

TEST(events_come_in_the_order_they_were_added) {
  struct event_list events = TAILQ_HEAD_INITIALIZER(events);
  for (size_t i = 0; i < 100; i++) {
    struct event *event = event_create(EVENT_PROGRESS, NULL, i);
    CHECK(event && event->size == i);
    memset(event->bytes, (int)i, i);
    events_add(&events, event);
  }
  for (size_t i = 0; i < 100; i++) {
    struct event *event = TAILQ_FIRST(&events);
    CHECK_INT(i, event->size);
    for (size_t at = 0; at < i; at++)
      CHECK_INT(i, event->bytes[at]);
    events_drop(&events, event);
  }
  CHECK(TAILQ_EMPTY(&events));
}

TEST(an_event_is_queued_once_and_an_embedded_one_again_after_it_was_taken) {
  struct event_list events = TAILQ_HEAD_INITIALIZER(events);
  struct event embedded = {.kind = EVENT_LOST, .embedded = true};
  for (int round = 0; round < 3; round++) {
    events_add(&events, &embedded);
    events_add(&events, &embedded);
    CHECK(TAILQ_FIRST(&events) == &embedded && !TAILQ_NEXT(&embedded, link));
    events_drop(&events, &embedded);
    events_drop(&events, &embedded);
    CHECK(TAILQ_EMPTY(&events));
  }
}

/* -- deadlines by number ----------------------------------------------------------------------- */

/* The next event, which must be a deadline; 0 if there is none. */
static uint64_t take(struct core *core) {
  struct event *event = TAILQ_FIRST(&core->events);
  if (!event) return 0;
  CHECK_INT(EVENT_DEADLINE, event->kind);
  uint64_t id = event->id;
  timers_taken(core, event);
  return id;
}

TEST(a_deadline_wakes_a_turn_that_waits) {
  struct core *core = open_core();
  int64_t at = core_now(core) + 3000;
  uint64_t id = core_set_deadline(core, at);
  while (TAILQ_EMPTY(&core->events))
    CHECK(core_turn(core, true));
  CHECK(core_now(core) >= at);
  CHECK_INT(id, take(core));
  CHECK_INT(0, take(core));
  CHECK(!core_turn(core, true)); /* nothing is left: it does not wait */
  core_destroy(core);
}

TEST(deadlines_come_in_order_each_with_its_own_number) {
  enum { COUNT = 1000 };
  static uint64_t ids[COUNT];
  struct core *core = open_core();
  int64_t now = core_now(core);
  for (int i = 0; i < COUNT; i++) {
    int turned = (i * 7) % COUNT; /* 7 and 1000 have no common divisor: all come once */
    ids[turned] = core_set_deadline(core, now + 1000000 + turned);
    CHECK(ids[turned] != 0 && ids[turned] <= INT64_MAX); /* Lua has signed integers */
  }
  core_turn(core, false);
  CHECK_INT(0, take(core));
  deadlines_advance(&core->deadlines, 2000000);
  core_turn(core, true);
  for (int i = 0; i < COUNT; i++)
    CHECK_INT(ids[i], take(core));
  core_destroy(core);
}

TEST(a_cleared_deadline_never_comes_not_even_when_it_was_queued) {
  struct core *core = open_core();
  int64_t now = core_now(core);
  uint64_t waiting = core_set_deadline(core, now + 1000000);
  uint64_t due = core_set_deadline(core, now - 1);
  uint64_t other = core_set_deadline(core, now);
  core_turn(core, true);
  core_clear_deadline(core, waiting);
  core_clear_deadline(core, due);
  deadlines_advance(&core->deadlines, 2000000);
  core_turn(core, true);
  CHECK_INT(other, take(core));
  CHECK_INT(0, take(core));
  CHECK(!core_turn(core, true));
  core_destroy(core);
}

TEST(an_old_number_clears_nothing_of_the_slots_next_user) {
  struct core *core = open_core();
  uint64_t seen[64];
  for (int i = 0; i < 64; i++) {
    seen[i] = core_set_deadline(core, core_now(core) - 1);
    for (int j = 0; j < i; j++) {
      CHECK(seen[j] != seen[i]);
      core_clear_deadline(core, seen[j]);
    }
    core_turn(core, true);
    for (int j = 0; j < i; j++)
      core_clear_deadline(core, seen[j]);
    if (i % 2) {
      CHECK_INT(seen[i], take(core));
    } else {
      core_clear_deadline(core, seen[i]);
    }
    core_clear_deadline(core, seen[i]);
    CHECK_INT(0, take(core));
  }
  CHECK_INT(seen[0] & UINT32_MAX, seen[63] & UINT32_MAX); /* one slot served them all */
  core_clear_deadline(core, 0);
  core_clear_deadline(core, UINT64_MAX);
  core_clear_deadline(core, 12345);
  core_destroy(core);
}

TEST(what_is_set_and_queued_goes_with_the_core) {
  struct core *core = open_core();
  for (int i = 0; i < 100; i++)
    CHECK(core_set_deadline(core, i % 2 ? INT64_MAX : 0));
  core_turn(core, true);
  events_add(&core->events, event_create(EVENT_PROGRESS, NULL, 1000));
  core_destroy(core);
  core_destroy(NULL);
}

/* -- turns ------------------------------------------------------------------------------------- */

TEST(a_turn_does_not_wait_while_an_event_is_queued) {
  struct core *core = open_core();
  CHECK(!core_turn(core, true));
  CHECK(core_set_deadline(core, core_now(core) + INT64_C(3600000000)));
  events_add(&core->events, event_create(EVENT_PROGRESS, NULL, 1));
  CHECK(core_turn(core, true));
  core_destroy(core);
}

TEST(two_cores_keep_apart) {
  struct core *one = open_core(), *two = open_core();
  uint64_t id = core_set_deadline(one, 0);
  CHECK_INT(id, core_set_deadline(two, core_now(two) + 1000000));
  deadlines_advance(&one->deadlines, 5000000);
  core_turn(one, true);
  core_turn(two, false);
  CHECK_INT(id, take(one));
  CHECK_INT(0, take(two));
  core_destroy(one);
  core_clear_deadline(two, id);
  CHECK(!core_turn(two, true));
  core_destroy(two);
}

TEST(an_interrupt_becomes_an_event_once) {
  struct core *core = open_core();
  for (int round = 0; round < 2; round++) {
    CHECK_INT(0, core_catch_interrupt(core));
    CHECK_INT(0, raise(SIGINT));
    while (TAILQ_EMPTY(&core->events))
      core_turn(core, false);
    CHECK_INT(EVENT_INTERRUPT, TAILQ_FIRST(&core->events)->kind);
    events_drop(&core->events, TAILQ_FIRST(&core->events));
    struct sigaction action;
    CHECK_INT(0, sigaction(SIGINT, NULL, &action));
    CHECK(action.sa_handler == SIG_DFL); /* the second one ends the process */
  }
  core_destroy(core);
}

static void on_pipe(int signal) { (void)signal; }

TEST(sigpipe_is_ignored_unless_somebody_handles_it) {
  struct sigaction action;
  signal(SIGPIPE, on_pipe);
  core_destroy(open_core());
  CHECK_INT(0, sigaction(SIGPIPE, NULL, &action));
  CHECK(action.sa_handler == on_pipe);
  signal(SIGPIPE, SIG_DFL);
  core_destroy(open_core());
  CHECK_INT(0, sigaction(SIGPIPE, NULL, &action));
  CHECK(action.sa_handler == SIG_IGN);
}

/* -- folders ----------------------------------------------------------------------------------- */

static void fill(const char *folder, int files) {
  char path[PATH_MAX];
  for (int i = 0; i < files; i++) {
    (void)snprintf(path, sizeof path, "%s/%d", folder, i);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    close(fd);
  }
}

static int exists(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0;
}

TEST(a_small_folder_is_removed_at_once) {
  struct core *core = open_core();
  char path[TMPDIR_PATH_MAX], other[TMPDIR_PATH_MAX];
  CHECK_INT(0, core_make_tmpdir(core, "test", path));
  CHECK_INT(0, core_make_tmpdir(core, "test", other));
  fill(path, 100);
  core_remove_tmpdir(core, path);
  CHECK(!exists(path) && exists(other));
  CHECK(!core_turn(core, true));  /* no thread works on it */
  core_remove_tmpdir(core, path); /* what is gone is no error */
  core_destroy(core);
  CHECK(!exists(other));
}

TEST(a_large_folder_is_removed_by_a_thread_while_the_loop_turns) {
  struct core *core = open_core();
  char path[TMPDIR_PATH_MAX];
  CHECK_INT(0, core_make_tmpdir(core, "test", path));
  fill(path, 3000);
  core_remove_tmpdir(core, path);
  CHECK(core->loop.active_reqs.count == 1);
  while (core_turn(core, true))
    continue;
  CHECK(!exists(path));
  core_destroy(core);
}

TEST(a_core_ends_only_when_its_folders_are_gone) {
  struct core *core = open_core();
  char paths[3][TMPDIR_PATH_MAX], root[TMPDIR_PATH_MAX];
  for (int i = 0; i < 3; i++) {
    CHECK_INT(0, core_make_tmpdir(core, "test", paths[i]));
    fill(paths[i], 1500);
  }
  (void)snprintf(root, sizeof root, "%s", core->tmp.path);
  for (int i = 0; i < 2; i++) /* the third was never given back */
    core_remove_tmpdir(core, paths[i]);
  core_destroy(core);
  CHECK(!exists(root));
}

TEST(folders_lie_below_tmpdir) {
  char *before = getenv("TMPDIR");
  char folder[] = "/tmp/berth-test-XXXXXX", kept[PATH_MAX], path[TMPDIR_PATH_MAX];
  (void)snprintf(kept, sizeof kept, "%s", before ? before : "");
  CHECK(mkdtemp(folder) != NULL);
  setenv("TMPDIR", folder, 1);
  struct core *core = open_core();
  int failed = core_make_tmpdir(core, "test", path);
  int below = strncmp(path, folder, strlen(folder)) == 0;
  struct stat info = {.st_mode = 0};
  (void)stat(path, &info);
  core_destroy(core);
  int left = rmdir(folder);
  if (before)
    setenv("TMPDIR", kept, 1);
  else
    unsetenv("TMPDIR");
  CHECK_INT(0, failed);
  CHECK(below);
  CHECK_INT(S_IFDIR | 0700, info.st_mode);
  CHECK_INT(0, left);
}

RUN_TESTS()
