#include "policy_state.h"
#include "policy_library.h"
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES_PER_UNIT = 32 };
enum { HOOK_EVERY = 100 }; /* instructions between two looks at the budget */

static struct policy_state *state_of(lua_State *L) {
  void *state;
  lua_getallocf(L, &state);
  return state;
}

/* What is allocated was written, and will be looked at: that is time which no instruction counts. A
 * bound on one block bounds what a single comparison can cost. */
static bool affordable(struct policy_state *state, size_t held, size_t size) {
  uint64_t units = (size - held) / BYTES_PER_UNIT;
  state->refused |= size > POLICY_BLOCK || state->memory - held + size > POLICY_MEMORY;
  state->spent |= units >= state->units;
  if (state->refused || state->spent) return false;
  state->units -= units;
  return true;
}

/* Frees and shrinks always succeed: Lua relies on that. For a new block `old` is a type tag. */
static void *allocate(void *context, void *block, size_t old, size_t size) {
  struct policy_state *state = context;
  size_t held = block ? old : 0;
  if (size == 0) {
    state->memory -= held;
    free(block);
    return NULL;
  }
  if (size > held && !affordable(state, held, size)) return NULL;
  void *moved = realloc(block, size);
  if (moved) state->memory += size - held;
  return moved;
}

static int64_t cpu_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Counting is blind to how long one instruction takes, and joining, comparing or calculating with
 * long texts takes long. The clock starts at the first look: a short call never asks it. */
static void look_at_clock(struct policy_state *state) {
  int64_t now = cpu_us();
  if (!state->since_us) state->since_us = now;
  if (now - state->since_us > POLICY_CPU_US) state->spent = true;
}

/* Once the budget is spent every single instruction of this thread raises: a loop around pcall then
 * meets the error outside the pcall as well. */
static void on_count(lua_State *L, lua_Debug *unused) {
  (void)unused;
  look_at_clock(state_of(L));
  policy_charge(L, state_of(L)->spent ? 0 : HOOK_EVERY);
}

void policy_charge(lua_State *L, uint64_t units) {
  struct policy_state *state = state_of(L);
  if (units < state->units && !state->spent) {
    state->units -= units;
    return;
  }
  state->spent = true;
  lua_sethook(L, on_count, LUA_MASKCOUNT, 1);
  luaL_error(L, "the policy used up its budget");
}

bool policy_tracing(lua_State *L) { return state_of(L)->tracing; }

static void say(char why[POLICY_WHY], const char *text) {
  snprintf(why, POLICY_WHY, "%s", text ? text : "the policy failed with an error that is no text");
}

static void forget(struct policy_state *state) {
  if (state->L) lua_close(state->L);
  state->L = NULL;
  state->memory = 0;
}

static void refill(struct policy_state *state, uint64_t units) {
  state->units = units;
  state->since_us = 0;
  state->spent = state->refused = false;
  lua_sethook(state->L, on_count, LUA_MASKCOUNT, HOOK_EVERY);
}

/* What the call left is judged by what happened, not by what the policy made of the error. */
static bool judge(struct policy_state *state, int status, char why[POLICY_WHY]) {
  if (state->refused) {
    snprintf(why, POLICY_WHY, "the policy used more than its %d MiB of memory, or %d KiB at once",
             POLICY_MEMORY >> 20, POLICY_BLOCK >> 10);
    forget(state);
  } else if (state->spent) {
    say(why, "the policy used up its budget of instructions");
  } else if (status != LUA_OK) {
    say(why, lua_type(state->L, -1) == LUA_TSTRING ? lua_tostring(state->L, -1) : NULL);
  } else {
    return true;
  }
  if (state->L) lua_settop(state->L, 0);
  return false;
}

/* stack: state -> the policy's table */
static int load_body(lua_State *L) {
  struct policy_state *state = lua_touserdata(L, 1);
  policy_library_push(L);
  if (luaL_loadbufferx(L, state->text, state->size, state->name, "t") != LUA_OK) lua_error(L);
  lua_pushvalue(L, 2);
  lua_setupvalue(L, -2, 1); /* _ENV */
  lua_call(L, 0, 1);
  if (lua_type(L, -1) != LUA_TTABLE)
    luaL_error(L, "the file returned a %s, not a policy", luaL_typename(L, -1));
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, state);
  return 1;
}

static bool make(struct policy_state *state, char why[POLICY_WHY]) {
  state->memory = 0;
  state->units = POLICY_LOAD_UNITS;
  state->spent = state->refused = false;
  state->L = lua_newstate(allocate, state);
  if (!state->L) {
    say(why, "no memory for the policy");
    return false;
  }
  refill(state, POLICY_LOAD_UNITS);
  lua_pushcfunction(state->L, load_body);
  lua_pushlightuserdata(state->L, state);
  if (judge(state, lua_pcall(state->L, 1, 1, 0), why)) return true;
  forget(state);
  return false;
}

bool policy_state_create(struct policy_state **out, const char *text, size_t size, const char *name,
                         char why[POLICY_WHY]) {
  struct policy_state *state = calloc(1, sizeof(*state));
  if (state) {
    state->text = malloc(size + 1);
    state->name = strdup(name);
    state->size = size;
  }
  if (!state || !state->text || !state->name) {
    policy_state_destroy(state);
    say(why, "no memory for the policy");
    return false;
  }
  memcpy(state->text, text, size);
  if (!make(state, why)) {
    policy_state_destroy(state);
    return false;
  }
  *out = state;
  return true;
}

void policy_state_destroy(struct policy_state *state) {
  if (!state) return;
  forget(state);
  free(state->text);
  free(state->name);
  free(state);
}

lua_State *policy_state_begin(struct policy_state *state, char why[POLICY_WHY]) {
  if (!state->L && !make(state, why)) return NULL;
  lua_settop(state->L, 0);
  refill(state, POLICY_CALL_UNITS);
  lua_rawgetp(state->L, LUA_REGISTRYINDEX, state);
  return state->L;
}

bool policy_state_call(struct policy_state *state, int arguments, char why[POLICY_WHY]) {
  return judge(state, lua_pcall(state->L, arguments, 1, 0), why);
}
