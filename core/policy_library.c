#include "policy_library.h"
#include "policy_state.h"
#include <lauxlib.h>
#include <lualib.h>
#include <string.h>

enum { BYTES_PER_UNIT = 32, STEPS_PER_UNIT = 8, CALL_UNITS = 4 };

/* --- charged functions --- */

/* Upvalue 1: the library's own function. */
static int forward(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

static int charged(lua_State *L) {
  uint64_t units = CALL_UNITS;
  for (int i = 1; i <= lua_gettop(L); i++) {
    int type = lua_type(L, i);
    if (type == LUA_TSTRING) units += lua_rawlen(L, i) / BYTES_PER_UNIT;
    if (type == LUA_TTABLE) units += lua_rawlen(L, i);
  }
  policy_charge(L, units);
  return forward(L);
}

static int charged_rep(lua_State *L) {
  size_t size, separator = 0;
  luaL_checklstring(L, 1, &size);
  lua_Integer times = luaL_checkinteger(L, 2);
  if (!lua_isnoneornil(L, 3)) luaL_checklstring(L, 3, &separator);
  double bytes = times > 0 ? (double)times * (double)(size + separator) : 0;
  policy_charge(L,
                bytes > POLICY_MEMORY ? UINT64_MAX : (uint64_t)bytes / BYTES_PER_UNIT + CALL_UNITS);
  return forward(L);
}

/* A metatable could say any length, and answer for it in functions that no count sees. */
static int charged_table(lua_State *L) {
  if (lua_type(L, 1) == LUA_TTABLE && lua_getmetatable(L, 1))
    return luaL_error(L, "the table functions take tables without a metatable here");
  return charged(L);
}

/* A sort compares each element about log2(n) times, inside C when it compares numbers or texts. */
static int charged_sort(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  policy_charge(L, lua_rawlen(L, 1) * 32);
  return charged_table(L);
}

/* Units of one look from `from` elements to `to`, where a policy names the range itself. */
static int charged_range(lua_State *L) {
  lua_Integer from = luaL_optinteger(L, 2, 1), to = luaL_optinteger(L, 3, 0);
  uint64_t units = to > from ? (uint64_t)to - (uint64_t)from : 0;
  policy_charge(L, units + (uint64_t)CALL_UNITS);
  return charged_table(L);
}

/* An upper bound of a match's steps: each repetition can end at every byte, a balance (%b) or a
 * reference (%1) can look at every byte, and an unanchored pattern can begin at every byte. */
static uint64_t pattern_units(const char *pattern, size_t pattern_size, size_t subject_size) {
  double steps = (double)pattern_size + 1, each = (double)subject_size + 1;
  if (pattern_size == 0 || pattern[0] != '^') steps *= each;
  for (size_t i = 0; i < pattern_size; i++) {
    bool looks = i > 0 && pattern[i - 1] == '%' && strchr("b123456789", pattern[i]);
    if (looks || strchr("*+-?", pattern[i])) steps *= each;
    if (steps > 1e15) return UINT64_MAX;
  }
  return (uint64_t)(steps / STEPS_PER_UNIT);
}

static int charged_pattern(lua_State *L) {
  size_t subject, size;
  luaL_checklstring(L, 1, &subject);
  const char *pattern = luaL_checklstring(L, 2, &size);
  uint64_t units = pattern_units(pattern, size, subject);
  if (units >= POLICY_CALL_UNITS)
    return luaL_error(L,
                      "this pattern could take too long on %d bytes; anchor it with '^', use fewer "
                      "repetitions, or compare plain text",
                      (int)subject);
  policy_charge(L, units + CALL_UNITS);
  return charged(L);
}

static int charged_find(lua_State *L) {
  return lua_toboolean(L, 4) ? charged(L) : charged_pattern(L);
}

/* A finalizer would run outside any call, where no budget sees it. */
static int safe_setmetatable(lua_State *L) {
  if (lua_type(L, 2) == LUA_TTABLE) {
    lua_pushliteral(L, "__gc");
    if (lua_rawget(L, 2) != LUA_TNIL) return luaL_error(L, "a policy has no __gc");
    lua_pop(L, 1);
  }
  return charged(L);
}

/* Upvalues: the library's resume, the coroutine. The library's own wrap closes a coroutine that
 * failed, see `close` below; here it is only dropped. */
static int resume_wrapped(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_rotate(L, 1, 2);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  if (!lua_toboolean(L, 1)) return lua_error(L);
  return lua_gettop(L) - 1;
}

/* Upvalue 1: the library's wrap, which is not used. */
static int safe_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, LUA_COLIBNAME);
  lua_getfield(L, -1, "resume");
  lua_State *made = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, made, 1);
  lua_pushcclosure(L, resume_wrapped, 2);
  return 1;
}

/* --- what a policy file is written with --- */

/* policy(table) -> table */
static int l_policy(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  return 1;
}

/* allow{ ... } -> the table with allow = true */
static int l_allow(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_createtable(L, 0, 1);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_pushliteral(L, "allow");
  lua_pushboolean(L, 1);
  lua_rawset(L, 1);
  return 1;
}

/* deny "reason" -> { deny = reason } */
static int l_deny(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, 1);
  lua_setfield(L, -2, "deny");
  return 1;
}

/* trace(text): a line that `berth policy try` shows; nothing elsewhere. */
static int l_trace(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  if (!policy_tracing(L)) return 0;
  luaL_getsubtable(L, LUA_REGISTRYINDEX, POLICY_TRACE_KEY);
  lua_Integer lines = (lua_Integer)lua_rawlen(L, -1);
  if (lines < POLICY_TRACE) {
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, lines + 1);
  }
  return 0;
}

static int unknown_global(lua_State *L) {
  return luaL_error(L, "unknown name '%s'", luaL_tolstring(L, 2, NULL));
}

static int new_global(lua_State *L) {
  return luaL_error(L, "a policy keeps no globals: write 'local %s'", luaL_tolstring(L, 2, NULL));
}

/* --- the tables --- */

struct entry {
  const char *name;
  lua_CFunction charge; /* NULL: as the library has it */
};

static const struct entry base[] = {
    {"assert", NULL},    {"error", NULL},        {"ipairs", NULL},
    {"next", NULL},      {"pairs", NULL},        {"pcall", NULL},
    {"select", charged}, {"tonumber", charged},  {"tostring", charged},
    {"type", NULL},      {"rawequal", NULL},     {"rawget", NULL},
    {"rawlen", NULL},    {"getmetatable", NULL}, {"setmetatable", safe_setmetatable},
    {NULL, NULL}};

static const struct entry string[] = {{"byte", charged_range},
                                      {"char", charged},
                                      {"find", charged_find},
                                      {"format", charged},
                                      {"gmatch", charged_pattern},
                                      {"gsub", charged_pattern},
                                      {"len", NULL},
                                      {"lower", charged},
                                      {"match", charged_pattern},
                                      {"rep", charged_rep},
                                      {"reverse", charged},
                                      {"sub", charged},
                                      {"upper", charged},
                                      {NULL, NULL}};

static const struct entry table[] = {{"concat", charged_table},
                                     {"insert", charged_table},
                                     {"pack", charged_table},
                                     {"remove", charged_table},
                                     {"unpack", charged_range},
                                     {"sort", charged_sort},
                                     {NULL, NULL}};

static const struct entry math[] = {{"abs", NULL},        {"ceil", NULL},   {"floor", NULL},
                                    {"fmod", NULL},       {"huge", NULL},   {"max", charged},
                                    {"maxinteger", NULL}, {"min", charged}, {"mininteger", NULL},
                                    {"tointeger", NULL},  {"type", NULL},   {NULL, NULL}};

static const struct entry utf8[] = {
    {"char", charged}, {"charpattern", NULL}, {"codes", charged}, {"len", charged}, {NULL, NULL}};

/* A hook that raised leaves the hooks of its coroutine off: what close would run of it no budget
 * sees. Being charged, close raises first once the budget is spent. */
static const struct entry coroutine[] = {
    {"close", charged},  {"create", NULL},  {"isyieldable", NULL},
    {"resume", NULL},    {"running", NULL}, {"status", NULL},
    {"wrap", safe_wrap}, {"yield", NULL},   {NULL, NULL}};

/* stack: ..., library -> ..., library, chosen */
static void push_chosen(lua_State *L, const struct entry *entries) {
  lua_newtable(L);
  for (; entries->name; entries++) {
    lua_getfield(L, -2, entries->name);
    if (entries->charge) lua_pushcclosure(L, entries->charge, 1);
    lua_setfield(L, -2, entries->name);
  }
}

/* stack: ..., globals -> ..., globals */
static void add_library(lua_State *L, const char *name, lua_CFunction open,
                        const struct entry *entries) {
  luaL_requiref(L, name, open, 0);
  push_chosen(L, entries);
  lua_setfield(L, -3, name);
  lua_pop(L, 1);
}

/* ("x"):rep(n) must be the charged one too. stack: ..., globals */
static void replace_string_methods(lua_State *L) {
  lua_pushliteral(L, "");
  if (lua_getmetatable(L, -1)) {
    lua_getfield(L, -3, "string");
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* A wrong name is an error, not nil: a typing mistake must not decide anything. */
static void close_globals(lua_State *L) {
  static const luaL_Reg events[] = {
      {"__index", unknown_global}, {"__newindex", new_global}, {NULL, NULL}};
  luaL_newlib(L, events);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
}

void policy_library_push(lua_State *L) {
  static const luaL_Reg own[] = {
      {"policy", l_policy}, {"allow", l_allow}, {"deny", l_deny}, {"trace", l_trace}, {NULL, NULL}};
  luaL_requiref(L, "_G", luaopen_base, 0);
  push_chosen(L, base);
  lua_remove(L, -2);
  luaL_setfuncs(L, own, 0);
  add_library(L, "string", luaopen_string, string);
  add_library(L, "table", luaopen_table, table);
  add_library(L, "math", luaopen_math, math);
  add_library(L, "utf8", luaopen_utf8, utf8);
  add_library(L, "coroutine", luaopen_coroutine, coroutine);
  replace_string_methods(L);
  close_globals(L);
}
