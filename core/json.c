#include "json.h"

#include "arena.h"
#include "json_functions.h"

#include <lauxlib.h>
#include <stdbool.h>

#define ARRAY_MT "berth.json.array"
#define NULL_MT "berth.json.null"
#define NULL_VALUE "berth.json.null value"

lua_Integer json_check_budget(lua_State *L, int arg, lua_Integer preset, lua_Integer max) {
  lua_Integer budget = luaL_optinteger(L, arg, preset);
  luaL_argcheck(L, budget >= 1 && budget <= max, arg, "budget out of range");
  return budget;
}

static void *allocate(void *arena, size_t size) { return arena_resize(arena, NULL, size); }
static void *reallocate(void *arena, void *memory, size_t size) {
  return arena_resize(arena, memory, size);
}
static void release(void *arena, void *memory) { arena_free(arena, memory); }

yajl_alloc_funcs json_memory(struct arena *arena) {
  return (yajl_alloc_funcs){
      .malloc = allocate, .realloc = reallocate, .free = release, .ctx = arena};
}

int json_failure(lua_State *L) {
  lua_pushnil(L);
  lua_insert(L, -2);
  return 2;
}

static int null_tostring(lua_State *L) {
  lua_pushliteral(L, "null");
  return 1;
}

/* A memory error can leave the metatable registered and half filled, so it is filled every time. */
static void push_null_metatable(lua_State *L) {
  luaL_newmetatable(L, NULL_MT);
  lua_pushcfunction(L, null_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
}

/* A full userdata, because all light ones share one metatable. */
static void push_null(lua_State *L) {
  if (lua_getfield(L, LUA_REGISTRYINDEX, NULL_VALUE) != LUA_TNIL) return;
  lua_pop(L, 1);
  lua_newuserdatauv(L, 0, 0);
  push_null_metatable(L);
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, NULL_VALUE);
}

static int json_array(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  bool has_metatable = lua_getmetatable(L, 1);
  bool free_or_ours =
      !has_metatable || lua_rawequal(L, -1, lua_upvalueindex(JSON_UPVALUE_ARRAY_MT));
  luaL_argcheck(L, free_or_ours, 1, "table has another metatable");
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(JSON_UPVALUE_ARRAY_MT));
  lua_setmetatable(L, 1);
  return 1;
}

static const luaL_Reg functions[] = {
    {"decode", json_decode},
    {"encode", json_encode},
    {"array", json_array},
    {NULL, NULL},
};

int luaopen_berth_json(lua_State *L) {
  arena_register(L);
  lua_newtable(L);
  push_null(L);
  lua_setfield(L, -2, "null");
  luaL_newmetatable(L, ARRAY_MT);
  lua_setfield(L, -2, "array_mt");
  lua_getfield(L, -1, "null");
  lua_getfield(L, -2, "array_mt");
  luaL_setfuncs(L, functions, JSON_UPVALUE_COUNT); /* stack: module, null, array_mt -> module */
  return 1;
}
