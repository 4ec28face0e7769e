#include "core.h"
#include "timers.h"
#include "worker.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  REMOVE_AT_ONCE = 256, /* directory entries: about a millisecond */
  DESTROY_CONFIRM_MS = 5000,
  SPIN_US = 50,         /* about what waking an idle processor costs */
  SPIN_MISSES_MOST = 8, /* then one spin in 256 sends */
};

struct removal {
  uv_work_t work;
  char path[TMPDIR_PATH_MAX];
};

static void on_timer(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  struct core *core = poll->data;
  deadlines_run(&core->deadlines);
}

static void on_interrupt(uv_signal_t *handle, int signal) {
  (void)signal;
  struct core *core = handle->data;
  events_add(&core->events, &core->interrupted);
}

static void ignore_sigpipe(void) {
  struct sigaction action;
  if (sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
}

static bool may_run_on_many(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 1;
}

static int open_timer(struct core *core) {
  int err = deadlines_init(&core->deadlines);
  if (err) return err;
  err = uv_poll_init(&core->loop, &core->timer, core->deadlines.timer_fd);
  if (err) return err;
  core->timer.data = core;
  return uv_poll_start(&core->timer, UV_READABLE, on_timer);
}

static int open_parts(struct core *core, const char *guard_path) {
  core->scratch = malloc(CORE_SCRATCH);
  if (!core->scratch) return -ENOMEM;
  int err = timers_create(core);
  if (err) return err;
  err = open_timer(core);
  if (err) return err;
  return spawner_init(&core->spawner, guard_path);
}

int core_create(struct core **out, const char *guard_path) {
  struct core *core = calloc(1, sizeof(*core));
  if (!core) return -ENOMEM;
  TAILQ_INIT(&core->events);
  TAILQ_INIT(&core->workers);
  core->deadlines.timer_fd = -1;
  core->spawner.guard_fd = -1;
  core->interrupted = (struct event){.kind = EVENT_INTERRUPT, .embedded = true};
  int err = uv_loop_init(&core->loop);
  if (err) {
    free(core);
    return err;
  }
  err = open_parts(core, guard_path);
  if (err) {
    core_destroy(core);
    return err;
  }
  ignore_sigpipe();
  core->many_cores = may_run_on_many();
  *out = core;
  return 0;
}

/* Waits for every end without turning the loop: all are killed first, then each is asked in turn.
 */
static void end_workers(struct core *core) {
  struct worker *worker;
  TAILQ_FOREACH (worker, &core->workers, link)
    worker_abandon(worker);
  int64_t until = deadlines_now(&core->deadlines) + DESTROY_CONFIRM_MS * 1000;
  while ((worker = TAILQ_FIRST(&core->workers))) {
    while (!worker_abandoned_end(worker) && deadlines_now(&core->deadlines) < until)
      poll(&(struct pollfd){.fd = worker->containment.root_pidfd, .events = POLLIN}, 1, 1);
    worker_abandon_handles(worker);
  }
}

static void close_handle(uv_handle_t *handle, void *unused) {
  (void)unused;
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void drop_events(struct core *core) {
  struct event *event;
  while ((event = TAILQ_FIRST(&core->events)))
    events_drop(&core->events, event);
}

void core_destroy(struct core *core) {
  if (!core) return;
  if (core->deadlines.timer_fd >= 0) end_workers(core);
  uv_walk(&core->loop, close_handle, NULL);
  uv_run(&core->loop, UV_RUN_DEFAULT); /* close callbacks and removals; nothing here enters Lua */
  timers_destroy(core);
  drop_events(core);
  uv_loop_close(&core->loop);
  deadlines_finish(&core->deadlines);
  spawner_finish(&core->spawner);
  if (core->tmp_open) tmpdir_root_close(&core->tmp);
  free(core->scratch);
  free(core);
}

int64_t core_now(const struct core *core) { return deadlines_now(&core->deadlines); }

static bool core_alive(const struct core *core) {
  return !TAILQ_EMPTY(&core->workers) || core->deadlines.count || core->loop.active_reqs.count ||
         !TAILQ_EMPTY(&core->events);
}

/* Waking an idle processor costs more than a short answer takes. So right behind a request the loop
 * stays awake for a moment, where a worker can run beside it; whoever answers slowly is awaited
 * awake ever more rarely. Only called when nothing else is to be done. */
static void spin(struct core *core) {
  if (core->spins_to_skip > 0) {
    core->spins_to_skip--;
    return;
  }
  int64_t until = core_now(core) + SPIN_US;
  do {
    uv_run(&core->loop, UV_RUN_NOWAIT);
    if (!TAILQ_EMPTY(&core->events)) {
      core->spin_misses = 0;
      return;
    }
  } while (core_now(core) < until);
  if (core->spin_misses < SPIN_MISSES_MOST) core->spin_misses++;
  core->spins_to_skip = (1u << core->spin_misses) - 1;
}

bool core_turn(struct core *core, bool block) {
  bool wait = block && TAILQ_EMPTY(&core->events) && core_alive(core);
  if (wait && core->sent && core->many_cores) {
    spin(core);
    wait = TAILQ_EMPTY(&core->events) && core_alive(core);
  }
  if (wait) core->sent = false;
  uv_run(&core->loop, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
  return core_alive(core);
}

const struct core_probe *core_probe(struct core *core, enum containment_level level) {
  struct core_probe *probe = &core->probes[level];
  if (!probe->tried) {
    probe->tried = true;
    probe->code = containment_probe(&core->spawner, level, probe->why, sizeof(probe->why));
  }
  return probe;
}

static int open_tmp(struct core *core) {
  const char *base = getenv("TMPDIR");
  if (!base || base[0] != '/') base = "/tmp";
  int err = tmpdir_root_open(&core->tmp, base, &core->swept);
  core->tmp_open = err == 0;
  return err;
}

int core_make_tmpdir(struct core *core, const char *prefix, char path[TMPDIR_PATH_MAX]) {
  int err = core->tmp_open ? 0 : open_tmp(core);
  return err ? err : tmpdir_make(&core->tmp, prefix, path);
}

static void on_remove(uv_work_t *work) {
  struct removal *removal = work->data;
  tmpdir_remove(removal->path, 0);
}

static void on_removed(uv_work_t *work, int status) {
  (void)status;
  free(work->data);
}

void core_remove_tmpdir(struct core *core, const char *path) {
  if (tmpdir_remove(path, REMOVE_AT_ONCE) != 0) return;
  struct removal *removal = malloc(sizeof(*removal));
  if (!removal) return; /* the root's own removal gets it */
  removal->work.data = removal;
  strncpy(removal->path, path, sizeof(removal->path) - 1);
  removal->path[sizeof(removal->path) - 1] = '\0';
  if (uv_queue_work(&core->loop, &removal->work, on_remove, on_removed)) free(removal);
}

int core_catch_interrupt(struct core *core) {
  if (!core->interrupt_open) {
    int err = uv_signal_init(&core->loop, &core->interrupt);
    if (err) return err;
    core->interrupt_open = true;
    core->interrupt.data = core;
  }
  return uv_signal_start_oneshot(&core->interrupt, on_interrupt, SIGINT);
}
