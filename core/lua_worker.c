/* lua_worker.c: workers as Lua sees them, and their events. */
#include "lua_seam.h"
#include "worker_io.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* --- arguments --- */

const char *seam_check_text(lua_State *L, int arg) {
  size_t size;
  const char *text = luaL_checklstring(L, arg, &size);
  luaL_argcheck(L, strlen(text) == size, arg, "it contains a NUL byte");
  return text;
}

/* A NULL-terminated vector of the strings in the table at `arg`. It lives in a userdata pushed on
 * the stack; the strings live in the table. */
static const char **check_vector(lua_State *L, int arg) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned count = lua_rawlen(L, arg);
  luaL_argcheck(L, count < 65536, arg, "more than 65535 strings");
  const char **vector = lua_newuserdatauv(L, (count + 1) * sizeof(*vector), 0);
  for (lua_Unsigned i = 0; i < count; i++) {
    int type = lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_argcheck(L, type == LUA_TSTRING, arg, "a list of strings is wanted");
    size_t size;
    vector[i] = lua_tolstring(L, -1, &size);
    luaL_argcheck(L, strlen(vector[i]) == size, arg, "a string contains a NUL byte");
    lua_pop(L, 1);
  }
  vector[count] = NULL;
  return vector;
}

static struct worker *check_worker(lua_State *L) {
  struct worker **box = luaL_checkudata(L, 1, WORKER_TYPE);
  if (!*box) luaL_argerror(L, 1, "this worker was never started");
  return *box;
}

/* --- spawn --- */

static int push_spawn_error(lua_State *L, const struct spawn_error *error) {
  seam_fail(L, error->code, error->what ? error->what : "the worker can't be started");
  lua_pushstring(L, spawn_phase_name(error->phase));
  return 4;
}

/* spawn(level, argv, envp, cwd, tmpdir, pipes, ready, events) -> worker, id
 *   | nil, message, name, phase. Takes over `tmpdir`, unless an argument is refused. */
int seam_spawn(lua_State *L) {
  static const char *const levels[] = {"group", "subreaper", "pidns", NULL};
  enum containment_level level = (enum containment_level)luaL_checkoption(L, 1, NULL, levels);
  struct spawn_request request = {.cwd = seam_check_text(L, 4)};
  const char *tmpdir = seam_check_text(L, 5);
  luaL_argcheck(L, strlen(tmpdir) < TMPDIR_PATH_MAX, 5, "the path is too long");
  struct worker_options options = {
      .pipes = lua_toboolean(L, 6), .ready = lua_toboolean(L, 7), .events = lua_toboolean(L, 8)};
  lua_settop(L, 8);
  request.argv = check_vector(L, 2);
  request.envp = check_vector(L, 3);
  luaL_argcheck(L, request.argv[0] && request.argv[0][0] == '/', 2,
                "an absolute program is wanted");
  struct worker **box = lua_newuserdatauv(L, sizeof(*box), 0);
  *box = NULL;
  luaL_setmetatable(L, WORKER_TYPE);
  struct spawn_error error = {.phase = SPAWN_OK};
  if (worker_start(box, seam_core(L), level, &options, &request, tmpdir, &error))
    return push_spawn_error(L, &error);
  lua_pushinteger(L, (lua_Integer)(*box)->id);
  return 2;
}

/* --- methods --- */

/* worker:send(bytes) -> true | nil, message, name (ESTALE: lost before the first byte) */
static int l_send(lua_State *L) {
  struct worker *worker = check_worker(L);
  size_t size;
  const char *bytes = luaL_checklstring(L, 2, &size);
  luaL_argcheck(L, size > 0 && size <= FRAME_MAX, 2, "1 byte to 1 MiB is wanted");
  int err = worker_send(worker, bytes, size);
  if (err) return seam_fail(L, err, "send");
  lua_pushboolean(L, 1);
  return 1;
}

/* worker:reply(is_error, bytes) -> true | nil, message, name: answers the open host call. */
static int l_reply(lua_State *L) {
  struct worker *worker = check_worker(L);
  enum frame_flags flags = lua_toboolean(L, 2) ? FRAME_ERROR_REPLY : FRAME_REPLY;
  size_t size;
  const char *bytes = luaL_checklstring(L, 3, &size);
  luaL_argcheck(L, size > 0 && size <= FRAME_REPLY_MAX, 3, "1 byte to 64 MiB is wanted");
  int err = worker_reply(worker, flags, bytes, size);
  if (err) return seam_fail(L, err, "reply");
  lua_pushboolean(L, 1);
  return 1;
}

/* worker:interrupt(bytes) -> true | nil, message, name: an interrupt frame to a busy worker. */
static int l_interrupt(lua_State *L) {
  struct worker *worker = check_worker(L);
  size_t size;
  const char *bytes = luaL_checklstring(L, 2, &size);
  luaL_argcheck(L, size > 0 && size <= FRAME_INTERRUPT_MAX, 2, "1 to 64 bytes are wanted");
  int err = worker_interrupt(worker, bytes, size);
  if (err) return seam_fail(L, err, "interrupt");
  lua_pushboolean(L, 1);
  return 1;
}

/* worker:kill() -> boolean: false if a response that was already there settled the race. */
static int l_kill(lua_State *L) {
  lua_pushboolean(L, worker_kill(check_worker(L)));
  return 1;
}

/* worker:stop(close_ms, term_ms) -> boolean, as kill. */
static int l_stop(lua_State *L) {
  struct worker *worker = check_worker(L);
  lua_Integer close_ms = luaL_checkinteger(L, 2), term_ms = luaL_checkinteger(L, 3);
  luaL_argcheck(L, close_ms >= 0 && close_ms <= 600000, 2, "0 to 600000 ms is wanted");
  luaL_argcheck(L, term_ms >= 0 && term_ms <= 600000, 3, "0 to 600000 ms is wanted");
  lua_pushboolean(L, worker_stop(worker, close_ms * 1000, term_ms * 1000));
  return 1;
}

/* worker:signal(number) -> true | nil, message, name */
static int l_signal(lua_State *L) {
  struct worker *worker = check_worker(L);
  lua_Integer number = luaL_checkinteger(L, 2);
  luaL_argcheck(L, number > 0 && number < NSIG, 2, "no such signal");
  int err = worker_signal(worker, (int)number);
  if (err) return seam_fail(L, err, "signal");
  lua_pushboolean(L, 1);
  return 1;
}

/* Kept output as one string, with a line that counts what was left out. */
static void push_capture(lua_State *L, const struct capture *capture) {
  if (capture->total == 0) {
    lua_pushliteral(L, "");
    return;
  }
  struct capture_part parts[CAPTURE_PARTS];
  unsigned long long left_out = capture_parts(capture, parts);
  luaL_Buffer buffer;
  luaL_buffinit(L, &buffer);
  luaL_addlstring(&buffer, (const char *)parts[0].bytes, parts[0].size);
  if (left_out) {
    char marker[64];
    snprintf(marker, sizeof(marker), "\n... %llu bytes left out ...\n", left_out);
    luaL_addstring(&buffer, marker);
  }
  for (int i = 1; i < CAPTURE_PARTS; i++)
    if (parts[i].size) luaL_addlstring(&buffer, (const char *)parts[i].bytes, parts[i].size);
  luaL_pushresult(&buffer);
}

/* worker:late() -> stdout, stderr: what was printed between evaluations. */
static int l_late(lua_State *L) {
  struct worker *worker = check_worker(L);
  worker_sort_late(worker);
  for (int i = 0; i < STREAM_COUNT; i++)
    push_capture(L, &worker->late[i]);
  return STREAM_COUNT;
}

/* worker:pid() -> integer: of the worker's own process as the host sees it; 0 once it is gone. */
static int l_pid(lua_State *L) {
  lua_pushinteger(L, worker_pid(check_worker(L)));
  return 1;
}

static int l_gc(lua_State *L) {
  struct worker **box = luaL_checkudata(L, 1, WORKER_TYPE);
  if (*box) worker_unref(*box);
  *box = NULL;
  return 0;
}

void seam_open_worker(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"send", l_send}, {"interrupt", l_interrupt}, {"reply", l_reply}, {"kill", l_kill},
      {"stop", l_stop}, {"signal", l_signal},       {"late", l_late},   {"pid", l_pid},
      {NULL, NULL},
  };
  if (luaL_newmetatable(L, WORKER_TYPE)) {
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, l_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
}

/* --- events --- */

static void set_integer(lua_State *L, const char *key, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, key);
}

static void push_loss(lua_State *L, const struct worker *worker) {
  static const char *const codes[] = {
      [LOSS_NONE] = "none",           [LOSS_EXIT] = "worker_exit", [LOSS_EOF] = "worker_eof",
      [LOSS_VIOLATION] = "violation", [LOSS_GUARD] = "guard_died", [LOSS_MEMORY] = "memory"};
  const struct worker_loss *loss = &worker->loss;
  lua_createtable(L, 0, 5);
  lua_pushstring(L, codes[loss->code]);
  lua_setfield(L, -2, "code");
  if (loss->what) {
    lua_pushstring(L, loss->what);
    lua_setfield(L, -2, "what");
  }
  if (loss->size) set_integer(L, "size", loss->size);
  if (loss->shown_size) {
    lua_pushlstring(L, (const char *)loss->shown, loss->shown_size);
    lua_setfield(L, -2, "bytes");
  }
}

static void set_status(lua_State *L, const struct worker *worker) {
  if (!worker->containment.leader_known) return;
  int status = worker->containment.leader_status;
  if (WIFEXITED(status)) set_integer(L, "exit_status", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) set_integer(L, "signal", WTERMSIG(status));
}

/* { loss, exit_status?, signal?, own_exit, elapsed_us, taken, stdout, stderr } */
static void push_end(lua_State *L, const struct worker *worker) {
  lua_createtable(L, 0, 8);
  push_loss(L, worker);
  lua_setfield(L, -2, "loss");
  set_status(L, worker);
  lua_pushboolean(L, worker->own_exit);
  lua_setfield(L, -2, "own_exit");
  set_integer(L, "elapsed_us", worker->ended_us - worker->kill_us);
  set_integer(L, "taken", (lua_Integer)worker->taken);
  push_capture(L, &worker->captured[STREAM_OUT]);
  lua_setfield(L, -2, "stdout");
  push_capture(L, &worker->captured[STREAM_ERR]);
  lua_setfield(L, -2, "stderr");
}

/* "response", id, bytes, alive, stdout, stderr */
static int push_response(lua_State *L, const struct worker *worker) {
  lua_pushboolean(L, worker->state == WORKER_IDLE);
  for (int i = 0; i < STREAM_COUNT; i++)
    push_capture(L, &worker->answer[i]);
  return 1 + STREAM_COUNT;
}

int seam_push_worker_event(lua_State *L, const struct event *event) {
  static const char *const names[] = {
      [EVENT_READY] = "ready", [EVENT_RESPONSE] = "response",       [EVENT_PROGRESS] = "progress",
      [EVENT_CALL] = "call",   [EVENT_UNCONFIRMED] = "unconfirmed", [EVENT_LOST] = "lost",
      [EVENT_ENDED] = "ended"};
  const struct worker *worker = event->worker;
  lua_pushstring(L, names[event->kind]);
  lua_pushinteger(L, (lua_Integer)worker->id);
  if (event->bytes) lua_pushlstring(L, (const char *)event->bytes, event->size);
  switch (event->kind) {
    case EVENT_RESPONSE: return 3 + push_response(L, worker);
    case EVENT_LOST: push_loss(L, worker); break;
    case EVENT_UNCONFIRMED:
    case EVENT_ENDED: push_end(L, worker); break;
    default: break;
  }
  return 3;
}
