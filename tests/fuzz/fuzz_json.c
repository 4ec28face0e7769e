/* JSON in, JSON out: whatever decodes must encode, and that must decode to the same value. What
 * does not decode must be refused with a message. Every input has a Lua state of its own, so that a
 * leak shows at once.
 *
 * With FUZZ_STANDALONE it is a program for any compiler: `fuzz_json [RUNS [SEED]]` mutates the
 * texts below, a fixed number of times.
 */
#include "json.h"

#include <lauxlib.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_MAX = 100000, STACK_SLOTS = 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same_value(lua_State *L, int a, int b);

static void demand(bool condition, const char *what) {
  if (condition) return;
  (void)fprintf(stderr, "fuzz_json: %s\n", what);
  abort();
}

/* Every member of the table at `a` is the same in the table at `b`. */
static bool contains(lua_State *L, int a, int b) {
  lua_pushnil(L);
  while (lua_next(L, a)) {
    lua_pushvalue(L, -2);
    lua_rawget(L, b);
    if (!same_value(L, lua_gettop(L) - 1, lua_gettop(L))) return false;
    lua_pop(L, 2);
  }
  return true;
}

static bool same_mark(lua_State *L, int a, int b) {
  bool marked_a = lua_getmetatable(L, a);
  if (!marked_a) lua_pushnil(L);
  bool marked_b = lua_getmetatable(L, b);
  if (!marked_b) lua_pushnil(L);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

/* 1 is not 1.0 here, and 0.0 not -0.0. */
static bool same_number(lua_State *L, int a, int b) {
  return lua_isinteger(L, a) == lua_isinteger(L, b) && lua_rawequal(L, a, b) &&
         !signbit(lua_tonumber(L, a)) == !signbit(lua_tonumber(L, b));
}

static bool same_value(lua_State *L, int a, int b) {
  luaL_checkstack(L, STACK_SLOTS, NULL);
  if (lua_type(L, a) != lua_type(L, b)) return false;
  if (lua_type(L, a) == LUA_TNUMBER) return same_number(L, a, b);
  if (lua_type(L, a) != LUA_TTABLE) return lua_rawequal(L, a, b);
  return same_mark(L, a, b) && contains(L, a, b) && contains(L, b, a);
}

/* stack: module, ... -> module, ..., value or nil, nil or message */
static void decode(lua_State *L, const char *text, size_t size) {
  lua_getfield(L, 1, "decode");
  lua_pushlstring(L, text, size);
  lua_pushnil(L);
  lua_pushinteger(L, VALUES_MAX);
  lua_call(L, 3, 2);
}

static void check_round_trip(lua_State *L) {
  lua_getfield(L, 1, "encode");
  lua_pushvalue(L, 2);
  lua_call(L, 1, 1);
  size_t size;
  const char *text = lua_tolstring(L, -1, &size);
  demand(text != NULL, "what was decoded does not encode");
  decode(L, text, size);
  lua_pop(L, 1);
  demand(same_value(L, 2, lua_gettop(L)), "the value came back as another one");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  lua_State *L = luaL_newstate();
  demand(L != NULL, "no memory");
  luaopen_berth_json(L);
  decode(L, (const char *)data, size);
  if (lua_isnil(L, 2))
    demand(lua_type(L, 3) == LUA_TSTRING, "refused without a message");
  else
    check_round_trip(L);
  lua_close(L);
  return 0;
}

#ifdef FUZZ_STANDALONE

enum { RUNS_DEFAULT = 200000, TEXT_MAX = 256, MUTATIONS_MAX = 4 };

static const char *const texts[] = {
    "[]",
    "{}",
    "[[],{},[{}]]",
    "{\"a\":{\"b\":[1,2.5,null,true,false]},\"c\":\"d\"}",
    "[-0,0.1,1e3,-1.5E-7,1e308,9223372036854775807,-9223372036854775808,18446744073709551616]",
    "\"\\u0000\\ud83d\\ude00\\n\\\"\\\\\\/\"",
    "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"]",
    "{\"\":0,\"\\u00e9\":[\"x\"],\"\":1}",
    " [ 1 , { \"k\" : [ ] } ]\r\n\t",
};

static const char pieces[] = "[]{},:\"\\ue0123456789.-+dDfFtn \n\v\x80\xc3\xed\xf4\xff";

/* Marsaglia's xorshift: any seed but 0, the same everywhere. */
static uint32_t random_below(uint64_t *state, size_t bound) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (uint32_t)((*state >> 32) % bound);
}

/* Replaces, inserts or removes one byte, or repeats a stretch of the text at its end. */
static size_t mutate(uint64_t *state, char text[TEXT_MAX], size_t size) {
  size_t at = random_below(state, size + 1);
  char piece = pieces[random_below(state, sizeof pieces)]; /* its final NUL is a piece as well */
  switch (random_below(state, 4)) {
    case 0:
      if (at < size) text[at] = piece;
      return size;
    case 1:
      if (size == TEXT_MAX) return size;
      memmove(text + at + 1, text + at, size - at);
      text[at] = piece;
      return size + 1;
    case 2:
      if (at == size) return size;
      memmove(text + at, text + at + 1, size - at - 1);
      return size - 1;
    default:
      if (size + (size - at) > TEXT_MAX) return size;
      memmove(text + size, text + at, size - at);
      return size + (size - at);
  }
}

static void run_once(uint64_t *state) {
  char text[TEXT_MAX];
  size_t size = (size_t)snprintf(text, sizeof text, "%s",
                                 texts[random_below(state, sizeof texts / sizeof *texts)]);
  for (uint32_t left = random_below(state, MUTATIONS_MAX + 1); left > 0; left--)
    size = mutate(state, text, size);
  LLVMFuzzerTestOneInput((const uint8_t *)text, size);
}

int main(int argc, char **argv) {
  unsigned long runs = argc > 1 ? strtoul(argv[1], NULL, 10) : RUNS_DEFAULT;
  uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
  for (unsigned long i = 0; i < runs; i++)
    run_once(&state);
  printf("%lu texts, no fault\n", runs);
  return 0;
}

#endif
