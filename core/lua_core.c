/* lua_core.c: the module "berth.core": the loop, its events, deadlines, folders, levels. */
#include "json.h"
#include "lua_seam.h"
#include "orphans.h"
#include "timers.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CORE_KEY "berth.core"
#define BERTH_VERSION "0.1.0"

/* Exported: Lua's all-in-one searcher looks for this name in berth.so. */
__attribute__((visibility("default"))) int luaopen_berth_core(lua_State *L);

struct core *seam_core(lua_State *L) {
  return *(struct core **)lua_touserdata(L, lua_upvalueindex(1));
}

int seam_fail(lua_State *L, int code, const char *doing) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", doing, strerror(-code));
  lua_pushstring(L, strerrorname_np(-code)); /* libuv does not know every one that exec gives */
  return 3;
}

/* now_us() -> integer: the suspend-aware clock, in microseconds. */
static int l_now_us(lua_State *L) {
  lua_pushinteger(L, core_now(seam_core(L)));
  return 1;
}

/* turn(block) -> boolean: one turn of the loop; false when nothing is left that could happen. */
static int l_turn(lua_State *L) {
  lua_pushboolean(L, core_turn(seam_core(L), lua_toboolean(L, 1)));
  return 1;
}

/* next_event() -> kind, id, ... | nothing. The event leaves the queue only once all is pushed. */
static int l_next_event(lua_State *L) {
  struct core *core = seam_core(L);
  struct event *event = TAILQ_FIRST(&core->events);
  if (!event) return 0;
  if (event->kind == EVENT_DEADLINE) {
    lua_pushliteral(L, "deadline");
    lua_pushinteger(L, (lua_Integer)event->id);
    timers_taken(core, event);
    return 2;
  }
  int pushed = 1;
  if (event->kind == EVENT_INTERRUPT)
    lua_pushliteral(L, "interrupt");
  else
    pushed = seam_push_worker_event(L, event);
  events_drop(&core->events, event);
  return pushed;
}

/* set_deadline(at_us) -> id */
static int l_set_deadline(lua_State *L) {
  uint64_t id = core_set_deadline(seam_core(L), luaL_checkinteger(L, 1));
  if (id == 0) return luaL_error(L, "not enough memory for a deadline");
  lua_pushinteger(L, (lua_Integer)id);
  return 1;
}

/* clear_deadline(id): its event will not come; harmless for one that has passed. */
static int l_clear_deadline(lua_State *L) {
  core_clear_deadline(seam_core(L), (uint64_t)luaL_checkinteger(L, 1));
  return 0;
}

/* advance_clock(us): for tests: makes this much time have passed. */
static int l_advance_clock(lua_State *L) {
  lua_Integer us = luaL_checkinteger(L, 1);
  luaL_argcheck(L, us >= 0, 1, "time only moves forward");
  deadlines_advance(&seam_core(L)->deadlines, us);
  return 0;
}

/* probe(level) -> true | false, why */
static int l_probe(lua_State *L) {
  static const char *const names[] = {"group", "subreaper", "pidns", NULL};
  enum containment_level level = (enum containment_level)luaL_checkoption(L, 1, NULL, names);
  const struct core_probe *probe = core_probe(seam_core(L), level);
  lua_pushboolean(L, probe->code == 0);
  if (probe->code == 0) return 1;
  lua_pushstring(L, probe->why);
  return 2;
}

/* make_tmpdir(prefix) -> path, swept | nil, message, name. `swept`: stale folders of dead hosts
 * that were removed on the way (only the first call sweeps). */
static int l_make_tmpdir(lua_State *L) {
  struct core *core = seam_core(L);
  char path[TMPDIR_PATH_MAX];
  int err = core_make_tmpdir(core, seam_check_text(L, 1), path);
  if (err) return seam_fail(L, err, "can't make a temporary folder");
  lua_pushstring(L, path);
  lua_pushinteger(L, core->swept);
  core->swept = 0;
  return 2;
}

/* remove_tmpdir(path): one that make_tmpdir made. */
static int l_remove_tmpdir(lua_State *L) {
  core_remove_tmpdir(seam_core(L), seam_check_text(L, 1));
  return 0;
}

/* make_folder(path) -> true | nil, message, name: mode 0700. */
static int l_make_folder(lua_State *L) {
  const char *path = seam_check_text(L, 1);
  if (mkdir(path, 0700)) return seam_fail(L, -errno, path);
  lua_pushboolean(L, 1);
  return 1;
}

/* realpath(path) -> absolute path without links | nil, message, name */
static int l_realpath(lua_State *L) {
  const char *path = seam_check_text(L, 1);
  char resolved[PATH_MAX];
  if (!realpath(path, resolved)) return seam_fail(L, -errno, path);
  lua_pushstring(L, resolved);
  return 1;
}

/* catch_interrupt(): SIGINT becomes the event "interrupt"; the second one kills the process. */
static int l_catch_interrupt(lua_State *L) {
  int err = core_catch_interrupt(seam_core(L));
  if (err) return luaL_error(L, "can't catch SIGINT: %s", uv_strerror(err));
  return 0;
}

/* reap_orphans(): see orphans.h. */
static int l_reap_orphans(lua_State *L) {
  int err = core_reap_orphans(seam_core(L));
  if (err) return luaL_error(L, "can't reap orphans: %s", uv_strerror(err));
  return 0;
}

/* call_pure(fn, ...) -> ok, results...: pcall that nothing can yield across: an attempt to is an
 * error of fn, and our caller's state stays whole. */
static int l_call_pure(lua_State *L) {
  luaL_checkany(L, 1);
  int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  lua_pushboolean(L, status == LUA_OK);
  lua_insert(L, 1);
  return lua_gettop(L);
}

/* stack: ..., kind, value -> the same. True if the value is plainly of the kind: a type's name, or
 * a set of words. Any other kind is for options.lua to judge. */
static bool fits(lua_State *L) {
  if (lua_type(L, -2) == LUA_TSTRING) return strcmp(lua_tostring(L, -2), luaL_typename(L, -1)) == 0;
  if (lua_type(L, -2) != LUA_TTABLE) return false;
  lua_pushvalue(L, -1);
  bool found = lua_rawget(L, -3) != LUA_TNIL && lua_toboolean(L, -1);
  lua_pop(L, 1);
  return found;
}

/* fits(values, kinds) -> boolean: whether `values` is a plain table whose every value is plainly of
 * the kind that `kinds` gives its name. False only means that options.lua must look closer. It is
 * here because every request and every decision passes it. */
static int l_fits(lua_State *L) {
  lua_settop(L, 2);
  bool plain = lua_istable(L, 1) && lua_istable(L, 2) && !lua_getmetatable(L, 1);
  lua_settop(L, 2);
  if (plain) lua_pushnil(L);
  while (plain && lua_next(L, 1)) { /* stack: values, kinds, name, value */
    lua_pushvalue(L, 3);
    lua_rawget(L, 2);
    lua_insert(L, 4);
    plain = fits(L);
    lua_settop(L, 3);
  }
  lua_pushboolean(L, plain);
  return 1;
}

static int l_core_gc(lua_State *L) {
  struct core **box = lua_touserdata(L, 1);
  core_destroy(*box);
  *box = NULL;
  return 0;
}

static bool beside(const char *file, char *guard, size_t size) {
  char resolved[PATH_MAX];
  if (!file || !realpath(file, resolved)) return false;
  char *slash = strrchr(resolved, '/');
  if (!slash) return false;
  *slash = '\0';
  int length = snprintf(guard, size, "%s/berth-guard", resolved);
  return length > 0 && (size_t)length < size && access(guard, X_OK) == 0;
}

/* The guard stands beside the library, or beside the binary that contains it. Where it does not,
 * the path says where it was sought. */
static void find_guard(char *guard, size_t size) {
  Dl_info info;
  char other[PATH_MAX] = "/berth-guard";
  guard[0] = '\0';
  if (dladdr((const void *)(uintptr_t)luaopen_berth_core, &info) &&
      beside(info.dli_fname, guard, size))
    return;
  if (beside("/proc/self/exe", other, sizeof(other)) || !guard[0])
    snprintf(guard, size, "%s", other);
}

/* Pushes the one core of this Lua state, made at the first call. */
static void push_core(lua_State *L) {
  if (lua_getfield(L, LUA_REGISTRYINDEX, CORE_KEY) == LUA_TUSERDATA) return;
  lua_pop(L, 1);
  struct core **box = lua_newuserdatauv(L, sizeof(*box), 0);
  *box = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, l_core_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  char guard[PATH_MAX];
  find_guard(guard, sizeof(guard));
  int err = core_create(box, guard);
  if (err) luaL_error(L, "berth can't start: %s", uv_strerror(err));
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, CORE_KEY);
}

static const luaL_Reg functions[] = {
    {"now_us", l_now_us},
    {"turn", l_turn},
    {"next_event", l_next_event},
    {"set_deadline", l_set_deadline},
    {"clear_deadline", l_clear_deadline},
    {"advance_clock", l_advance_clock},
    {"probe", l_probe},
    {"make_tmpdir", l_make_tmpdir},
    {"remove_tmpdir", l_remove_tmpdir},
    {"make_folder", l_make_folder},
    {"realpath", l_realpath},
    {"catch_interrupt", l_catch_interrupt},
    {"reap_orphans", l_reap_orphans},
    {"call_pure", l_call_pure},
    {"fits", l_fits},
    {"spawn", seam_spawn},
    {"load_policy", seam_load_policy},
    {"machine", seam_machine},
    {NULL, NULL},
};

int luaopen_berth_core(lua_State *L) {
  luaL_checkversion(L);
  seam_open_worker(L);
  seam_open_policy(L);
  luaL_newlibtable(L, functions);
  push_core(L);
  luaL_setfuncs(L, functions, 1);
  luaopen_berth_json(L);
  lua_setfield(L, -2, "json");
  lua_pushliteral(L, BERTH_VERSION);
  lua_setfield(L, -2, "version");
  lua_pushliteral(L, SEAM_FUNCTION);
  lua_setfield(L, -2, "FUNCTION");
  lua_pushboolean(L, geteuid() == 0);
  lua_setfield(L, -2, "is_root");
  return 1;
}
