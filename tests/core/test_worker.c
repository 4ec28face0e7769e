/* Workers without Lua: what the loop sees at the same moment is brought about by not turning it.
 * The workers are shells at level "group", which needs no guard. */
#include "check.h"
#include "worker.h"
#include "worker_io.h"
#include <limits.h>
#include <poll.h>
#include <stdbool.h>

enum { PATIENCE_MS = 20000 };

static struct core *core;

WARM_UP() {
  if (core_create(&core, "/nowhere/berth-guard")) abort();
  core_destroy(core);
}

static struct worker *start(const char *script, const struct worker_options *options) {
  CHECK_INT(0, core_create(&core, "/nowhere/berth-guard"));
  const char *const argv[] = {"/bin/sh", "-c", script, NULL};
  const char *const envp[] = {"PATH=/usr/bin:/bin", NULL};
  struct spawn_request request = {.argv = argv, .envp = envp, .cwd = "/"};
  struct spawn_error error;
  struct worker *worker = NULL;
  char tmpdir[TMPDIR_PATH_MAX];
  CHECK_INT(0, core_make_tmpdir(core, "worker", tmpdir));
  CHECK_INT(0, worker_start(&worker, core, LEVEL_GROUP, options, &request, tmpdir, &error));
  return worker;
}

static void finish(struct worker *worker) {
  char tmpdir[TMPDIR_PATH_MAX];
  memcpy(tmpdir, worker->tmpdir, sizeof tmpdir);
  worker_unref(worker);
  core_destroy(core);
  CHECK(access(tmpdir, F_OK) < 0);
}

/* Takes the next event out of the queue, turning the loop until there is one. */
static enum event_kind next_event(void) {
  while (TAILQ_EMPTY(&core->events))
    CHECK(core_turn(core, true));
  struct event *event = TAILQ_FIRST(&core->events);
  enum event_kind kind = event->kind;
  events_drop(&core->events, event);
  return kind;
}

/* Waits without turning the loop. */
static void await(int fd) {
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  CHECK_INT(1, poll(&ready, 1, PATIENCE_MS));
}

static void check_capture(const struct capture *capture, const char *expected) {
  struct capture_part parts[CAPTURE_PARTS];
  CHECK_INT(0, capture_parts(capture, parts));
  CHECK_INT(strlen(expected), parts[0].size);
  if (parts[0].size) CHECK_BYTES(expected, parts[0].bytes, parts[0].size);
}

TEST(a_response_makes_it_idle_and_its_end_is_the_last_event) {
  const struct worker_options options = {.ready = false};
  struct worker *worker = start(
      "head -c 5 >/dev/null; echo hi >&2; printf '\\0\\0\\0\\2ok'; exec sleep 1000", &options);
  CHECK_INT(WORKER_IDLE, worker->state);
  CHECK(worker_pid(worker) > 1);
  CHECK_INT(0, worker_send(worker, "x", 1));
  CHECK_INT(WORKER_BUSY, worker->state);
  CHECK_INT(5, worker->taken);
  while (TAILQ_EMPTY(&core->events))
    CHECK(core_turn(core, true));
  struct event *event = TAILQ_FIRST(&core->events);
  CHECK_INT(EVENT_RESPONSE, event->kind);
  CHECK_INT(2, event->size);
  CHECK_BYTES("ok", event->bytes, 2);
  events_drop(&core->events, event);
  CHECK_INT(WORKER_IDLE, worker->state);
  check_capture(&worker->answer[STREAM_ERR], "hi\n");
  CHECK(worker_kill(worker));
  CHECK_INT(EVENT_ENDED, next_event());
  CHECK_INT(WORKER_ENDED, worker->state);
  CHECK_INT(0, worker_pid(worker));
  CHECK_INT(-ESTALE, worker_send(worker, "x", 1));
  CHECK(TAILQ_EMPTY(&core->events));
  finish(worker);
}

/* The rule of design section 4: a response that is there before the kill completes the evaluation,
 * also when more came behind it, and also when the loop has read it already and nobody was told. */
TEST(a_kill_finds_a_response_in_the_pipe) {
  static const struct {
    const char *script;
    enum worker_state state;
  } rows[] = {
      {"printf '\\0\\0\\0\\2ok'; exec sleep 1000", WORKER_IDLE},
      {"printf '\\0\\0\\0\\2okmore'; exec sleep 1000", WORKER_EMPTYING},
      {"exec printf '\\0\\0\\0\\2ok'", WORKER_IDLE},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int turned = 0; turned < 2; turned++) {
      char script[256];
      (void)snprintf(script, sizeof script, "head -c 5 >/dev/null; %s", rows[i].script);
      const struct worker_options options = {.ready = false};
      struct worker *worker = start(script, &options);
      CHECK_INT(0, worker_send(worker, "x", 1));
      await(worker->frames.fd);
      while (turned && TAILQ_EMPTY(&core->events))
        core_turn(core, true);
      CHECK(!worker_kill(worker));
      CHECK_INT(EVENT_RESPONSE, TAILQ_FIRST(&core->events)->kind);
      if (i < 2) CHECK(worker->state >= rows[i].state);
      CHECK_INT(EVENT_RESPONSE, next_event());
      (void)worker_kill(worker); /* now it is told: this one kills */
      enum event_kind kind = next_event();
      while (kind != EVENT_ENDED) {
        CHECK_INT(EVENT_LOST, kind);
        kind = next_event();
      }
      finish(worker);
    }
  }
}

/* The exit is seen first, with a part of a frame in the pipe: the EOF behind it tells of the cut.
 */
TEST(an_exit_inside_a_frame_is_a_violation_whatever_is_seen_first) {
  const struct worker_options options = {.ready = false};
  struct worker *worker =
      start("head -c 5 >/dev/null; printf '\\0\\0\\0\\5ab'; echo bye >&2; exit 3", &options);
  CHECK_INT(0, worker_send(worker, "x", 1));
  await(worker->root.fd);
  CHECK(containment_leader_exited(&worker->containment));
  worker_fire(worker, WORKER_EXITED);
  CHECK_INT(LOSS_VIOLATION, worker->loss.code);
  CHECK_INT(6, worker->loss.shown_size);
  CHECK_BYTES("\0\0\0\5ab", worker->loss.shown, 6);
  CHECK_INT(EVENT_LOST, next_event());
  CHECK_INT(EVENT_ENDED, next_event());
  CHECK_INT(3 << 8, worker->containment.leader_status);
  check_capture(&worker->captured[STREAM_ERR], "bye\n"); /* read at the end, if not before */
  finish(worker);
}

TEST(a_length_over_the_limit_takes_no_memory) {
  const struct worker_options options = {.ready = false};
  struct worker *worker =
      start("head -c 5 >/dev/null; printf '\\77\\377\\377\\377x'; exec sleep 1000", &options);
  CHECK_INT(0, worker_send(worker, "x", 1));
  CHECK_INT(EVENT_LOST, next_event());
  CHECK_INT(LOSS_VIOLATION, worker->loss.code);
  CHECK_INT((1 << 30) - 1, worker->loss.size);
  CHECK(worker->incoming.event == NULL);
  CHECK_BYTES("\77\377\377\377x", worker->loss.shown, 5);
  CHECK_INT(EVENT_ENDED, next_event());
  finish(worker);
}

/* Sends to a worker that stays silent, and turns the loop until a deadline passes. */
static void wait_in_vain(bool many_cores, unsigned misses) {
  struct worker *worker = start("exec sleep 1000", &(struct worker_options){0});
  core->many_cores = many_cores;
  CHECK_INT(0, worker_send(worker, "x", 1));
  CHECK(core->sent);
  CHECK(core_set_deadline(core, core_now(core) + 1000 * 1000) != 0);
  while (TAILQ_EMPTY(&core->events))
    CHECK(core_turn(core, true));
  CHECK_INT(EVENT_DEADLINE, TAILQ_FIRST(&core->events)->kind);
  CHECK_INT(misses, core->spin_misses);
  CHECK_INT(misses, core->spins_to_skip);
  CHECK(!core->sent); /* it slept: it stays awake again only behind the next request */
  CHECK(worker_kill(worker));
  finish(worker);
}

TEST(a_late_answer_is_awaited_awake_once_and_more_rarely_from_then_on) { wait_in_vain(true, 1); }

TEST(on_one_core_no_answer_is_awaited_awake) { wait_in_vain(false, 0); }

TEST(a_worker_that_is_never_ended_is_ended_with_the_core) {
  const struct worker_options options = {.pipes = true, .ready = true};
  struct worker *worker = start("trap '' TERM; exec sleep 1000", &options);
  CHECK_INT(WORKER_STARTING, worker->state);
  CHECK_INT(-ESTALE, worker_send(worker, "x", 1));
  CHECK_INT(-EINVAL, worker_reply(worker, FRAME_REPLY, "x", 1));
  pid_t pid = worker_pid(worker);
  CHECK(pid > 1);
  CHECK_INT(0, worker_signal(worker, SIGTERM));
  finish(worker);
  CHECK(kill(pid, 0) < 0 && errno == ESRCH);
}

RUN_TESTS()
