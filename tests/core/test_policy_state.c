/* The policy state when memory is refused: at every single step of its making and of a call, by the
 * machine or by the policy's own cap, nothing is left behind and the next call works again. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* policy_state.c is compiled in here with these in the place of the library's, so that the nth
 * request for memory and all behind it can fail, and every block is counted. */
static void *counted_realloc(void *block, size_t size);
static void *counted_calloc(size_t count, size_t size);
static char *counted_copy(const char *text);
static void counted_free(void *block);

#define realloc counted_realloc
#define malloc(size) counted_realloc(NULL, size)
#define calloc counted_calloc
#define strdup counted_copy
#define free counted_free
#include "policy_state.c" /* NOLINT(bugprone-suspicious-include) */
#undef realloc
#undef malloc
#undef calloc
#undef strdup
#undef free

#include "check.h"

enum { NEVER = 1 << 30, STEP = 64 };

static long blocks;          /* that are not freed yet */
static long granted = NEVER; /* requests for memory that succeed from now on */

static void *counted_realloc(void *block, size_t size) {
  if (granted <= 0) return NULL;
  void *moved = realloc(block, size);
  if (!moved) return NULL;
  granted--;
  if (!block) blocks++;
  return moved;
}

static void *counted_calloc(size_t count, size_t size) {
  void *block = counted_realloc(NULL, count * size);
  return block ? memset(block, 0, count * size) : NULL;
}

static char *counted_copy(const char *text) {
  size_t size = strlen(text) + 1;
  char *block = counted_realloc(NULL, size);
  return block ? memcpy(block, text, size) : NULL;
}

static void counted_free(void *block) {
  if (block) blocks--;
  free(block);
}

static const char TEXT[] = "local calls = 0\n"
                           "return policy { authorize = function(request)\n"
                           "  calls = calls + 1\n"
                           "  local parts = {}\n"
                           "  for i = 1, 50 do parts[i] = ('%d:%d'):format(calls, i) end\n"
                           "  local co = coroutine.wrap(function() coroutine.yield(parts) end)\n"
                           "  return allow { deny = table.concat(co(), ' '), calls = calls }\n"
                           "end }\n";

static bool make_policy(struct policy_state **state, const char *text, char why[POLICY_WHY]) {
  return policy_state_create(state, text, strlen(text), "@test.lua", why);
}

/* stack: the policy's table -> what authorize answered */
static int ask(lua_State *L) {
  lua_getfield(L, 1, "authorize");
  lua_newtable(L);
  lua_call(L, 1, 1);
  return 1;
}

static bool prepare(struct policy_state *state, char why[POLICY_WHY]) {
  lua_State *L = policy_state_begin(state, why);
  if (!L) return false;
  lua_pushcfunction(L, ask);
  lua_insert(L, 1);
  return true;
}

static bool call(struct policy_state *state, char why[POLICY_WHY]) {
  return prepare(state, why) && policy_state_call(state, 1, why);
}

/* The policy's own count of its calls: 1 in a state made anew. */
static int calls(struct policy_state *state) {
  lua_getfield(state->L, -1, "calls");
  int count = (int)lua_tointeger(state->L, -1);
  lua_settop(state->L, 0);
  return count;
}

TEST(making_one_fails_at_every_step_without_a_leak) {
  struct policy_state *state = NULL;
  char why[POLICY_WHY];
  long steps = 0;
  for (;; steps++) {
    why[0] = '\0';
    granted = steps;
    bool made = make_policy(&state, TEXT, why);
    granted = NEVER;
    if (made) break;
    CHECK(strstr(why, "memory"));
    CHECK(!state);
    CHECK_INT(0, blocks);
  }
  CHECK(steps > 50);
  CHECK(call(state, why));
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

TEST(a_call_fails_at_every_step_and_the_next_one_works) {
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, TEXT, why));
  long steps = 0;
  for (;; steps++) {
    granted = steps;
    bool answered = call(state, why);
    granted = NEVER;
    if (answered) break;
    CHECK(strstr(why, "memory"));
    CHECK(call(state, why));
  }
  CHECK(steps > 50);
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

/* The cap is met at every distance: the call has failed, its state is gone, and it is made anew. */
TEST(a_call_that_meets_the_cap_costs_the_state) {
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, TEXT, why));
  long refusals = 0;
  for (size_t room = 0;; room += STEP) {
    CHECK(prepare(state, why));
    size_t before = state->memory, taken = POLICY_MEMORY - room - before;
    state->memory += taken;
    if (policy_state_call(state, 1, why)) {
      state->memory -= taken;
      break;
    }
    refusals++;
    CHECK(strstr(why, "8 MiB of memory"));
    CHECK(!state->L);
    CHECK(call(state, why));
    CHECK_INT(1, calls(state));
  }
  CHECK(refusals > 20);
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

/* A state that can't be made anew fails its call and is tried again at the next one. */
TEST(making_one_anew_fails_at_every_step_and_is_tried_again) {
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, TEXT, why));
  long steps = 0;
  for (;; steps++) {
    forget(state);
    granted = steps;
    bool begun = policy_state_begin(state, why) != NULL;
    granted = NEVER;
    if (begun) break;
    CHECK(strstr(why, "memory"));
    CHECK(!state->L);
  }
  CHECK(steps > 50);
  CHECK(call(state, why));
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

TEST(what_is_freed_is_counted) {
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, TEXT, why));
  lua_gc(state->L, LUA_GCCOLLECT);
  size_t before = state->memory;
  for (int i = 0; i < 200; i++)
    CHECK(call(state, why));
  CHECK_INT(200, calls(state));
  lua_gc(state->L, LUA_GCCOLLECT);
  CHECK(state->memory < before + 4096);
  CHECK((size_t)lua_gc(state->L, LUA_GCCOUNT) * 1024 <= state->memory + 1024);
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

/* A policy that catches the error has still used up its memory or its budget. */
TEST(a_caught_refusal_is_a_refusal) {
  static const char HOG[] =
      "return policy { authorize = function()\n"
      "  pcall(function() local t = {} for i = 1, 60000 do t[i] = {i, i, i, i, i, i, i, i} end "
      "end)\n"
      "  return allow()\n"
      "end }\n";
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, HOG, why));
  CHECK(!call(state, why));
  CHECK(strstr(why, "budget") || strstr(why, "memory"));
  CHECK(!call(state, why));
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

TEST(a_spent_budget_keeps_the_state) {
  static const char LOOP[] = "local calls = 0\n"
                             "return policy { authorize = function()\n"
                             "  calls = calls + 1\n"
                             "  while calls == 1 do pcall(function() while true do end end) end\n"
                             "  return { calls = calls }\n"
                             "end }\n";
  struct policy_state *state;
  char why[POLICY_WHY];
  CHECK(make_policy(&state, LOOP, why));
  CHECK(!call(state, why));
  CHECK_STR("the policy used up its budget of instructions", why);
  CHECK(call(state, why));
  CHECK_INT(2, calls(state));
  policy_state_destroy(state);
  CHECK_INT(0, blocks);
}

TEST(destroying_none_is_nothing) { policy_state_destroy(NULL); }

RUN_TESTS()
