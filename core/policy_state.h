/* policy_state.h: an operator's policy file in a Lua state of its own.
 *
 * The state has closed globals (policy_library.c), a cap on its memory, and a budget for each call.
 * The budget is one total outside the state: pcall, coroutines and __close can't hide from it, and
 * a call that spent it has failed even if the policy caught the error. The same holds for memory:
 * after the first refused allocation the call has failed, and the state is made anew from its text
 * before the next one.
 *
 * Ownership: policy_state_create gives the state to the caller; the text is copied.
 * Errors: false and one sentence in `why`. Threads: one at a time.
 */
#ifndef BERTH_POLICY_STATE_H
#define BERTH_POLICY_STATE_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  POLICY_WHY = 512,
  POLICY_MEMORY = 8 << 20,    /* bytes */
  POLICY_BLOCK = 256 << 10,   /* bytes of one block: a text, the items of a table */
  POLICY_CALL_UNITS = 200000, /* an instruction is one unit, see policy_charge */
  POLICY_LOAD_UNITS = 2000000,
  POLICY_CPU_US = 250000, /* a backstop for both: far more than they take */
  POLICY_TRACE = 64,      /* lines that trace() keeps of one call */
};

struct policy_state {
  lua_State *L; /* NULL: to be made anew from the text */
  char *text, *name;
  size_t size, memory;
  uint64_t units;   /* left in this call */
  int64_t since_us; /* CPU time at this call's first look at the clock; 0: none yet */
  bool spent;       /* the call used up its units */
  bool refused;     /* an allocation was refused */
  bool tracing;     /* trace() keeps its lines */
};

/* Loads the text (source only, no bytecode) and runs it once. It must return a table. */
bool policy_state_create(struct policy_state **out, const char *text, size_t size, const char *name,
                         char why[POLICY_WHY]);
void policy_state_destroy(struct policy_state *state); /* NULL-safe */

/* Makes the state ready for one call and returns its Lua state, with the policy's table at stack
 * index 1 and nothing else; NULL if it can't be made anew. */
lua_State *policy_state_begin(struct policy_state *state, char why[POLICY_WHY]);

/* Calls the function below `arguments` values on the stack; one result. */
bool policy_state_call(struct policy_state *state, int arguments, char why[POLICY_WHY]);

/* Takes units from the call's budget; raises in L when they are spent. */
void policy_charge(lua_State *L, uint64_t units);

/* Whether trace() is to keep its lines. */
bool policy_tracing(lua_State *L);

#endif
