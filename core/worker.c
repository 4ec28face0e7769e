#include "worker.h"
#include "worker_io.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CAPTURE_LIMIT = 1 << 20,
  LATE_LIMIT = 64 << 10,
  EXIT_WAIT_US = 100 * 1000,    /* EOF is seen before the exit status by this much at most */
  CONFIRM_US = 5 * 1000 * 1000, /* then quarantine */
  TICK_US = 1000,               /* where no descriptor tells of the end */
  SWEEP_US = 100 * 1000,        /* in quarantine */
  SWEEP_MOST_US = 5 * 1000 * 1000,
};

static void on_step(struct deadline *deadline);

static void step_in(struct worker *worker, int64_t us) {
  deadline_set(&worker->core->deadlines, &worker->step, core_now(worker->core) + us);
}

static void tell(struct worker *worker, struct event *event) {
  events_add(&worker->core->events, event);
}

/* --- the end of memory --- */

static void worker_free(struct worker *worker) {
  struct event *event = TAILQ_FIRST(&worker->core->events);
  while (event) {
    struct event *next = TAILQ_NEXT(event, link);
    if (event->worker == worker) events_drop(&worker->core->events, event);
    event = next;
  }
  for (int i = 0; i < STREAM_COUNT; i++) {
    capture_finish(&worker->captured[i]);
    capture_finish(&worker->answer[i]);
    capture_finish(&worker->late[i]);
  }
  free(worker->incoming.event);
  free(worker->outgoing.bytes);
  deadline_detach(&worker->core->deadlines, &worker->step);
  free(worker);
}

void worker_unref(struct worker *worker) {
  if (--worker->refs == 0) worker_free(worker);
}

static void on_closed(uv_handle_t *handle) {
  struct worker *worker = handle->data;
  if (--worker->closing == 0 && worker->state == WORKER_ENDED) worker_unref(worker);
}

static void close_watch(struct worker *worker, struct watch *watch) {
  if (watch_close(watch, on_closed)) worker->closing++;
}

/* The core's own reference goes with the last close callback. */
static void close_handles(struct worker *worker) {
  struct watch *watches[] = {&worker->requests,
                             &worker->frames,
                             &worker->root,
                             &worker->status,
                             &worker->streams[STREAM_OUT],
                             &worker->streams[STREAM_ERR]};
  worker->closing++; /* so that no callback can be the last before all are asked */
  for (size_t i = 0; i < sizeof(watches) / sizeof(*watches); i++)
    close_watch(worker, watches[i]);
  TAILQ_REMOVE(&worker->core->workers, worker, link);
  if (--worker->closing == 0) worker_unref(worker);
}

/* --- the end of the process tree --- */

/* The watches borrowed two of its descriptors, so they go first. */
static void release_containment(struct worker *worker) {
  close_watch(worker, &worker->root);
  close_watch(worker, &worker->status);
  containment_release(&worker->containment);
}

static void finish(struct worker *worker) {
  worker->state = WORKER_ENDED;
  worker->ended_us = core_now(worker->core);
  deadline_clear(&worker->core->deadlines, &worker->step);
  worker_drain(worker);
  release_containment(worker);
  core_remove_tmpdir(worker->core, worker->tmpdir);
  tell(worker, &worker->ended);
  close_handles(worker);
}

static void quarantine(struct worker *worker) {
  if (worker->state == WORKER_UNCONFIRMED) return;
  worker->state = WORKER_UNCONFIRMED;
  worker->ended_us = core_now(worker->core);
  tell(worker, &worker->unconfirmed);
}

/* In quarantine the looks become rarer: each may read all of /proc. */
static int64_t next_sweep(struct worker *worker) {
  int64_t next = worker->sweep_us ? worker->sweep_us * 2 : SWEEP_US;
  worker->sweep_us = next < SWEEP_MOST_US ? next : SWEEP_MOST_US;
  return worker->sweep_us;
}

/* Only a dead root without its proof, or a group whose leader is gone, needs asking by the clock:
 * all else wakes the loop through root's pidfd. */
static void check_end(struct worker *worker) {
  int64_t now = core_now(worker->core);
  enum containment_end end = containment_poll(&worker->containment);
  if (end == CONTAINMENT_EMPTY) {
    finish(worker);
    return;
  }
  if (end == CONTAINMENT_UNCONFIRMABLE) {
    watch_stop(&worker->root);
    containment_sweep(worker->tmpdir);
  }
  if (end == CONTAINMENT_UNCONFIRMABLE || now >= worker->confirm_by_us) quarantine(worker);
  if (worker->state == WORKER_UNCONFIRMED)
    step_in(worker, next_sweep(worker));
  else if (worker->containment.level == LEVEL_GROUP)
    step_in(worker, TICK_US);
  else
    deadline_set(&worker->core->deadlines, &worker->step, worker->confirm_by_us);
}

static void note_kill(struct worker *worker) {
  if (worker->kill_us == 0) worker->kill_us = core_now(worker->core);
}

static void empty(struct worker *worker) {
  worker->state = WORKER_EMPTYING;
  note_kill(worker);
  worker->confirm_by_us = core_now(worker->core) + CONFIRM_US;
  watch_stop(&worker->frames);
  watch_stop(&worker->requests);
  (void)containment_leader_exited(&worker->containment);
  worker->own_exit = worker->containment.leader_known;
  containment_kill(&worker->containment);
  check_end(worker);
}

/* --- transitions --- */

static void become_idle(struct worker *worker) { worker->state = WORKER_IDLE; }

static void respond(struct worker *worker) {
  worker->state = WORKER_IDLE;
  worker->answered = true; /* its output is collected once all bytes of this read are taken */
}

static void stay(struct worker *worker) { (void)worker; }

static void open_call(struct worker *worker) { worker->call_open = true; }

static void lose_and_empty(struct worker *worker) {
  tell(worker, &worker->lost);
  empty(worker);
}

/* EOF usually means that the worker is exiting: its status is worth a moment, since SIGKILL to its
 * guard would take the status along. Whoever closes its frames and lives on gains nothing by it. */
static void frames_ended(struct worker *worker) {
  if (worker->loss.code == LOSS_NONE)
    worker->loss = (struct worker_loss){.code = LOSS_EOF, .what = "it closed its frames"};
  tell(worker, &worker->lost);
  note_kill(worker);
  if (containment_leader_exited(&worker->containment) || worker->containment.leader_known) {
    empty(worker);
    return;
  }
  worker->state = WORKER_DRAINING;
  watch_stop(&worker->frames);
  step_in(worker, EXIT_WAIT_US);
}

/* On exit the frame pipe is read once more: a whole response there completes the evaluation. */
static void exited(struct worker *worker) {
  note_kill(worker);
  worker_read_frames(worker);
  worker_read_frames(worker); /* a short read stops before the EOF that tells of a cut frame */
  if (worker->state > WORKER_BUSY) {
    if (worker->state == WORKER_DRAINING) empty(worker);
    return;
  }
  bool known = worker->containment.leader_known;
  if (worker->loss.code == LOSS_NONE)
    worker->loss = (struct worker_loss){.code = known ? LOSS_EXIT : LOSS_GUARD,
                                        .what = known ? "it exited" : "its guard died"};
  lose_and_empty(worker);
}

static void stop(struct worker *worker) {
  worker->state = WORKER_STOPPING;
  note_kill(worker);
  watch_stop(&worker->frames);
  close_watch(worker, &worker->requests);
}

static void next_grace(struct worker *worker) {
  if (worker->term_sent) {
    empty(worker);
    return;
  }
  worker->term_sent = true;
  containment_signal(&worker->containment, SIGTERM);
  step_in(worker, worker->grace_us);
}

typedef void transition(struct worker *worker);

/* What each state does with each event. An empty place means: not expected, nothing happens. */
static transition *const table[WORKER_ENDED + 1][WORKER_EVENT_COUNT] = {
    [WORKER_STARTING] = {[WORKER_READY_FRAME] = become_idle,
                         [WORKER_BREACH] = lose_and_empty,
                         [WORKER_FRAMES_END] = frames_ended,
                         [WORKER_EXITED] = exited,
                         [WORKER_KILL_ASKED] = empty,
                         [WORKER_STOP_ASKED] = empty},
    [WORKER_IDLE] = {[WORKER_BREACH] = lose_and_empty,
                     [WORKER_FRAMES_END] = frames_ended,
                     [WORKER_EXITED] = exited,
                     [WORKER_KILL_ASKED] = empty,
                     [WORKER_STOP_ASKED] = stop},
    [WORKER_BUSY] = {[WORKER_RESPONSE_FRAME] = respond,
                     [WORKER_EVENT_FRAME] = stay,
                     [WORKER_CALL_FRAME] = open_call,
                     [WORKER_BREACH] = lose_and_empty,
                     [WORKER_FRAMES_END] = frames_ended,
                     [WORKER_EXITED] = exited,
                     [WORKER_KILL_ASKED] = empty,
                     [WORKER_STOP_ASKED] = empty},
    [WORKER_DRAINING] = {[WORKER_EXITED] = empty,
                         [WORKER_STEP] = empty,
                         [WORKER_KILL_ASKED] = empty,
                         [WORKER_STOP_ASKED] = empty},
    [WORKER_STOPPING] =
        {[WORKER_EXITED] = empty, [WORKER_STEP] = next_grace, [WORKER_KILL_ASKED] = empty},
    [WORKER_EMPTYING] = {[WORKER_EXITED] = check_end, [WORKER_STEP] = check_end},
    [WORKER_UNCONFIRMED] = {[WORKER_EXITED] = check_end, [WORKER_STEP] = check_end},
};

void worker_fire(struct worker *worker, enum worker_event event) {
  transition *act = table[worker->state][event];
  if (act) act(worker);
}

bool worker_takes(const struct worker *worker, enum worker_event frame) {
  return table[worker->state][frame] != NULL;
}

/* --- what the loop sees --- */

static void on_step(struct deadline *deadline) {
  struct worker *worker =
      (struct worker *)(void *)((char *)deadline - offsetof(struct worker, step));
  worker_fire(worker, WORKER_STEP);
}

/* A dead root stays readable for ever: it is watched no longer once that has been seen. */
static void on_root(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  struct worker *worker = poll->data;
  watch_stop(&worker->root);
  containment_leader_exited(&worker->containment);
  worker_fire(worker, WORKER_EXITED);
}

static void on_status(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  struct worker *worker = poll->data;
  watch_stop(&worker->status);
  if (containment_leader_exited(&worker->containment)) worker_fire(worker, WORKER_EXITED);
}

/* --- start --- */

enum { PIPE_REQUESTS, PIPE_FRAMES, PIPE_STDOUT, PIPE_STDERR, PIPE_NULL, PIPE_COUNT };

struct start_pipes {
  struct pipe_ends ends[PIPE_COUNT];
};

static void close_pipes(struct start_pipes *pipes) {
  for (int i = 0; i < PIPE_COUNT; i++)
    pipe_close(&pipes->ends[i]);
}

static int open_pipes(struct start_pipes *pipes, bool apart) {
  for (int i = 0; i < PIPE_COUNT; i++)
    pipes->ends[i] = (struct pipe_ends){-1, -1};
  int err = pipe_open(&pipes->ends[PIPE_REQUESTS], PIPE_TO_WORKER);
  if (!err) err = pipe_open(&pipes->ends[PIPE_FRAMES], PIPE_FROM_WORKER);
  if (!err) err = pipe_open(&pipes->ends[PIPE_STDERR], PIPE_FROM_WORKER);
  if (!err && apart) err = pipe_open(&pipes->ends[PIPE_STDOUT], PIPE_FROM_WORKER);
  if (!err && apart) err = pipe_open_null(&pipes->ends[PIPE_NULL]);
  if (err) close_pipes(pipes);
  return err;
}

static void place_fds(struct spawn_request *request, const struct start_pipes *pipes, bool apart) {
  request->fds[0] = pipes->ends[apart ? PIPE_NULL : PIPE_REQUESTS].worker;
  request->fds[1] = pipes->ends[apart ? PIPE_STDOUT : PIPE_FRAMES].worker;
  request->fds[2] = pipes->ends[PIPE_STDERR].worker;
  request->fds[3] = pipes->ends[PIPE_REQUESTS].worker;
  request->fds[4] = pipes->ends[PIPE_FRAMES].worker;
  request->fd_count = apart ? 5 : 3;
}

static struct worker *new_worker(struct core *core, const struct worker_options *options,
                                 const char *tmpdir) {
  struct worker *worker = calloc(1, sizeof(*worker));
  if (!worker) return NULL;
  worker->core = core;
  worker->options = *options;
  worker->refs = 1;
  worker->requests.fd = worker->frames.fd = worker->root.fd = worker->status.fd = -1;
  for (int i = 0; i < STREAM_COUNT; i++) {
    worker->streams[i].fd = -1;
    worker->captured[i].limit = worker->answer[i].limit = CAPTURE_LIMIT;
    worker->late[i].limit = LATE_LIMIT;
  }
  worker->step.on_due = on_step;
  worker->lost = (struct event){.kind = EVENT_LOST, .embedded = true, .worker = worker};
  worker->unconfirmed =
      (struct event){.kind = EVENT_UNCONFIRMED, .embedded = true, .worker = worker};
  worker->ended = (struct event){.kind = EVENT_ENDED, .embedded = true, .worker = worker};
  strncpy(worker->tmpdir, tmpdir, sizeof(worker->tmpdir) - 1);
  if (deadline_attach(&core->deadlines, &worker->step)) {
    free(worker);
    return NULL;
  }
  return worker;
}

static int watch_pipe(struct worker *worker, struct watch *watch, struct pipe_ends *ends,
                      uv_poll_cb on_ready) {
  int fd = ends->host;
  ends->host = -1;
  if (fd < 0) return 0;
  int err = watch_open(watch, &worker->core->loop, fd, worker);
  return err || !on_ready ? err : watch_start(watch, UV_READABLE, on_ready);
}

static int watch_containment(struct worker *worker, struct watch *watch, int fd,
                             uv_poll_cb on_ready) {
  if (fd < 0) return 0;
  int err = watch_borrow(watch, &worker->core->loop, fd, worker);
  return err ? err : watch_start(watch, UV_READABLE, on_ready);
}

static int watch_all(struct worker *worker, struct start_pipes *pipes) {
  struct pipe_ends *ends = pipes->ends;
  int err = watch_pipe(worker, &worker->requests, &ends[PIPE_REQUESTS], NULL);
  if (!err) err = watch_pipe(worker, &worker->frames, &ends[PIPE_FRAMES], worker_on_frames);
  if (!err)
    err = watch_pipe(worker, &worker->streams[STREAM_OUT], &ends[PIPE_STDOUT], worker_on_stdout);
  if (!err)
    err = watch_pipe(worker, &worker->streams[STREAM_ERR], &ends[PIPE_STDERR], worker_on_stderr);
  if (!err) err = watch_containment(worker, &worker->root, worker->containment.root_pidfd, on_root);
  if (!err)
    err = watch_containment(worker, &worker->status, worker->containment.status_fd, on_status);
  return err;
}

static int start_process(struct worker *worker, struct start_pipes *pipes,
                         enum containment_level level, struct spawn_request *request,
                         struct spawn_error *error) {
  int err = open_pipes(pipes, worker->options.pipes);
  if (err) {
    *error = (struct spawn_error){.phase = SPAWN_SETUP, .code = err};
    return err;
  }
  place_fds(request, pipes, worker->options.pipes);
  err = containment_start(&worker->containment, &worker->core->spawner, level, request, error);
  if (err) close_pipes(pipes);
  return err;
}

int worker_start(struct worker **out, struct core *core, enum containment_level level,
                 const struct worker_options *options, struct spawn_request *request,
                 const char *tmpdir, struct spawn_error *error) {
  struct start_pipes pipes;
  struct worker *worker = new_worker(core, options, tmpdir);
  int err = worker ? start_process(worker, &pipes, level, request, error) : -ENOMEM;
  if (err) {
    if (!worker) *error = (struct spawn_error){.phase = SPAWN_SETUP, .code = err};
    core_remove_tmpdir(core, tmpdir);
    if (worker) worker_unref(worker);
    return err;
  }
  worker->id = ++core->last_worker_id;
  worker->state = options->ready ? WORKER_STARTING : WORKER_IDLE;
  worker->refs++; /* the core's */
  TAILQ_INSERT_TAIL(&core->workers, worker, link);
  err = watch_all(worker, &pipes);
  close_pipes(&pipes);
  if (err) { /* it runs, and is ended as any other: its events tell */
    worker->loss = (struct worker_loss){.code = LOSS_MEMORY, .what = "the loop can't watch it"};
    lose_and_empty(worker);
  }
  *out = worker;
  return 0;
}

/* --- asked from outside --- */

void worker_sort_late(struct worker *worker) {
  if (worker->state != WORKER_IDLE) return;
  for (int i = 0; i < STREAM_COUNT; i++)
    if (worker->captured[i].total) capture_move(&worker->late[i], &worker->captured[i]);
}

int worker_send(struct worker *worker, const void *bytes, size_t size) {
  worker_look(worker);
  if (worker->state != WORKER_IDLE) return -ESTALE;
  worker_sort_late(worker);
  worker->state = WORKER_BUSY;
  worker->core->sent = true;
  worker->taken = 0;
  worker->call_open = false;
  int err = worker_write(worker, FRAME_REQUEST, bytes, size);
  if (err) worker->state = WORKER_IDLE;
  return err;
}

int worker_reply(struct worker *worker, enum frame_flags flags, const void *bytes, size_t size) {
  if (worker->state != WORKER_BUSY || !worker->call_open) return -EINVAL;
  worker->call_open = false;
  return worker_write(worker, flags, bytes, size);
}

int worker_interrupt(struct worker *worker, const void *bytes, size_t size) {
  if (worker->state != WORKER_BUSY) return -EINVAL;
  if (worker->outgoing.bytes) return -EBUSY;
  return worker_write(worker, FRAME_INTERRUPT, bytes, size);
}

/* True if a whole response was in the pipe, or has been read and not been told yet: it ends the
 * evaluation, whatever came behind it. */
static bool settled(struct worker *worker) {
  if (worker->state == WORKER_BUSY) worker_read_frames(worker);
  const struct event *event;
  TAILQ_FOREACH (event, &worker->core->events, link)
    if (event->worker == worker && event->kind == EVENT_RESPONSE) return true;
  return false;
}

bool worker_kill(struct worker *worker) {
  if (settled(worker)) return false;
  worker_fire(worker, WORKER_KILL_ASKED);
  return true;
}

bool worker_stop(struct worker *worker, int64_t close_us, int64_t term_us) {
  if (settled(worker)) return false;
  worker->grace_us = term_us;
  worker_fire(worker, WORKER_STOP_ASKED);
  if (worker->state == WORKER_STOPPING) step_in(worker, close_us);
  return true;
}

/* The kernel prints the number of a pidfd's process as our own pid namespace sees it. */
pid_t worker_pid(const struct worker *worker) {
  char path[48];
  snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", worker->containment.leader_pidfd);
  FILE *info = worker->state == WORKER_ENDED ? NULL : fopen(path, "re");
  if (!info) return 0;
  char line[64];
  int pid = 0;
  while (fgets(line, sizeof(line), info))
    if (sscanf(line, "Pid: %d", &pid) == 1) break;
  fclose(info);
  return pid > 0 ? pid : 0;
}

int worker_signal(struct worker *worker, int signal) {
  return containment_signal(&worker->containment, signal);
}

void worker_abandon(struct worker *worker) { containment_kill(&worker->containment); }

bool worker_abandoned_end(struct worker *worker) {
  return containment_poll(&worker->containment) != CONTAINMENT_ALIVE;
}

void worker_abandon_handles(struct worker *worker) {
  worker->state = WORKER_ENDED;
  deadline_clear(&worker->core->deadlines, &worker->step);
  release_containment(worker);
  tmpdir_remove(worker->tmpdir, 0);
  close_handles(worker);
}
