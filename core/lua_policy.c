/* lua_policy.c: policy files as Lua sees them: load, call, read a field.
 *
 * Values cross between two Lua states as plain data. What is pushed into the policy's state is
 * pushed inside its own protected call, with nothing that can raise in ours; what comes back is
 * read from it without calls that can raise there, so that no error of one state unwinds through
 * the other.
 */
#include "lua_seam.h"
#include "policy_library.h"
#include "policy_state.h"
#include <string.h>

#define POLICY_TYPE "berth.policy"

enum { COPY_DEPTH = 6, COPY_ITEMS = 4096, COPY_TEXT = 64 * 1024 };

struct copy {
  lua_State *from, *to;
  int items;
  const char *problem; /* a static phrase; NULL: all was copied */
};

static void copy_value(struct copy *copy, int index, int depth);

static void copy_table(struct copy *copy, int index, int depth) {
  if (depth >= COPY_DEPTH || !lua_checkstack(copy->from, 4)) {
    copy->problem = "is nested too deep";
    lua_pushnil(copy->to);
    return;
  }
  luaL_checkstack(copy->to, 4, NULL);
  lua_newtable(copy->to);
  lua_pushnil(copy->from);
  while (lua_next(copy->from, index)) {
    int top = lua_gettop(copy->from);
    copy_value(copy, top - 1, depth + 1);
    copy_value(copy, top, depth + 1);
    if (copy->problem) {
      lua_pop(copy->from, 2);
      lua_pop(copy->to, 2);
      return;
    }
    lua_rawset(copy->to, -3);
    lua_pop(copy->from, 1);
  }
}

/* Pushes one value of plain data; anything else becomes nil and a problem. `index` is absolute. */
static void copy_value(struct copy *copy, int index, int depth) {
  if (++copy->items > COPY_ITEMS) copy->problem = "has too many fields";
  switch (copy->problem ? LUA_TNONE : lua_type(copy->from, index)) {
    case LUA_TBOOLEAN: lua_pushboolean(copy->to, lua_toboolean(copy->from, index)); return;
    case LUA_TNUMBER:
      if (lua_isinteger(copy->from, index))
        lua_pushinteger(copy->to, lua_tointeger(copy->from, index));
      else
        lua_pushnumber(copy->to, lua_tonumber(copy->from, index));
      return;
    case LUA_TSTRING: {
      size_t size;
      const char *text = lua_tolstring(copy->from, index, &size);
      if (size > COPY_TEXT) copy->problem = "has a text over 64 KiB";
      lua_pushlstring(copy->to, text, copy->problem ? 0 : size);
      return;
    }
    case LUA_TTABLE: copy_table(copy, index, depth); return;
    case LUA_TNIL: lua_pushnil(copy->to); return;
    default:
      if (!copy->problem)
        copy->problem = "is or holds a function or another value that is no plain data";
      lua_pushnil(copy->to);
  }
}

/* What a protected call in the policy's state needs to know. */
struct call {
  const char *name;
  int first, count; /* the arguments on the caller's stack */
  struct copy copy;
};

/* stack: the policy's table, call -> the function's first result. Runs in the policy's state. */
static int call_body(lua_State *P) {
  struct call *call = lua_touserdata(P, 2);
  lua_pushstring(P, call->name);
  if (lua_rawget(P, 1) != LUA_TFUNCTION)
    return luaL_error(P, "it has no function '%s'", call->name);
  for (int i = 0; i < call->count; i++) {
    call->copy.items = 0;
    copy_value(&call->copy, call->first + i, 0);
    if (call->copy.problem) return luaL_error(P, "the request %s", call->copy.problem);
  }
  lua_call(P, call->count, 1);
  return 1;
}

static struct policy_state *check_policy(lua_State *L) {
  return *(struct policy_state **)luaL_checkudata(L, 1, POLICY_TYPE);
}

static int push_failure(lua_State *L, const char *why) {
  lua_pushnil(L);
  lua_pushstring(L, why);
  return 2;
}

static int push_result(lua_State *L, lua_State *P) {
  struct copy copy = {.from = P, .to = L};
  copy_value(&copy, lua_gettop(P), 0);
  lua_settop(P, 0);
  if (!copy.problem) return 1;
  lua_pushnil(L);
  lua_pushfstring(L, "what the policy answered %s", copy.problem);
  return 2;
}

/* policy:call(name, ...) -> value | nil, message: plain data in, plain data out. */
static int l_call(lua_State *L) {
  struct policy_state *state = check_policy(L);
  char why[POLICY_WHY];
  struct call call = {.name = luaL_checkstring(L, 2), .first = 3};
  call.count = lua_gettop(L) - 2;
  lua_State *P = policy_state_begin(state, why);
  if (!P) return push_failure(L, why);
  call.copy = (struct copy){.from = L, .to = P};
  lua_pushcfunction(P, call_body);
  lua_insert(P, 1);
  lua_pushlightuserdata(P, &call);
  if (!policy_state_call(state, 2, why)) return push_failure(L, why);
  return push_result(L, P);
}

/* stack: the policy's table -> { name = value or SEAM_FUNCTION } */
static int fields_body(lua_State *P) {
  lua_newtable(P);
  lua_pushnil(P);
  while (lua_next(P, 1)) {
    if (lua_type(P, -1) == LUA_TFUNCTION) {
      lua_pop(P, 1);
      lua_pushliteral(P, SEAM_FUNCTION);
    }
    lua_pushvalue(P, -2);
    lua_insert(P, -2);
    lua_rawset(P, 2);
  }
  return 1;
}

/* policy:fields() -> table | nil, message: its fields; a function is shown as SEAM_FUNCTION.
 */
static int l_fields(lua_State *L) {
  struct policy_state *state = check_policy(L);
  char why[POLICY_WHY];
  lua_State *P = policy_state_begin(state, why);
  if (!P) return push_failure(L, why);
  lua_pushcfunction(P, fields_body);
  lua_insert(P, 1);
  if (!policy_state_call(state, 1, why)) return push_failure(L, why);
  return push_result(L, P);
}

static int trace_body(lua_State *P) {
  if (lua_getfield(P, LUA_REGISTRYINDEX, POLICY_TRACE_KEY) != LUA_TTABLE) lua_newtable(P);
  lua_pushnil(P);
  lua_setfield(P, LUA_REGISTRYINDEX, POLICY_TRACE_KEY);
  return 1;
}

/* policy:trace() -> list of lines: what trace() said since the last time; from now on it is kept.
 */
static int l_trace(lua_State *L) {
  struct policy_state *state = check_policy(L);
  char why[POLICY_WHY];
  state->tracing = true;
  lua_State *P = policy_state_begin(state, why);
  if (!P) return push_failure(L, why);
  lua_settop(P, 0);
  lua_pushcfunction(P, trace_body);
  if (!policy_state_call(state, 0, why)) return push_failure(L, why);
  return push_result(L, P);
}

static int l_gc(lua_State *L) {
  struct policy_state **box = luaL_checkudata(L, 1, POLICY_TYPE);
  policy_state_destroy(*box);
  *box = NULL;
  return 0;
}

/* load_policy(text, name) -> policy | nil, message. `name` is shown in messages, as for load. */
int seam_load_policy(lua_State *L) {
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  const char *name = luaL_checkstring(L, 2);
  char why[POLICY_WHY];
  struct policy_state **box = lua_newuserdatauv(L, sizeof(struct policy_state *), 0);
  *box = NULL;
  luaL_setmetatable(L, POLICY_TYPE);
  if (!policy_state_create(box, text, size, name, why)) return push_failure(L, why);
  return 1;
}

void seam_open_policy(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"call", l_call}, {"fields", l_fields}, {"trace", l_trace}, {NULL, NULL}};
  if (luaL_newmetatable(L, POLICY_TYPE)) {
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, l_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
}
