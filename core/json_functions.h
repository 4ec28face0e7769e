/* json_functions.h: the two halves of the JSON module, as json.c puts them together.
 * Both are Lua functions, documented in json.h, and need the upvalues named here.
 */
#ifndef BERTH_JSON_FUNCTIONS_H
#define BERTH_JSON_FUNCTIONS_H

#include "arena.h"

#include <lua.h>
#include <yajl/yajl_common.h>

enum { JSON_UPVALUE_NULL = 1, JSON_UPVALUE_ARRAY_MT, JSON_UPVALUE_COUNT = JSON_UPVALUE_ARRAY_MT };

enum { JSON_DEFAULT_DEPTH = 64 };

int json_decode(lua_State *L);
int json_encode(lua_State *L);

/* The optional integer argument `arg`, which must be in 1..max: raises otherwise. */
lua_Integer json_check_budget(lua_State *L, int arg, lua_Integer preset, lua_Integer max);

/* Lets yajl take its memory from the arena: it then needs no yajl_free. */
yajl_alloc_funcs json_memory(struct arena *arena);

/* stack: ..., message -> nil, message; returns 2. */
int json_failure(lua_State *L);

#endif
