/* lua_seam.h: what the files between Lua and the core share. Each function there checks its
 * arguments, calls C, and pushes the results; nothing that can raise stands between taking a
 * resource and the userdata that owns it.
 *
 * Errors: a caller's mistake raises; the outside world's errors are nil, message, name (ENOENT,
 * ...).
 */
#ifndef BERTH_LUA_SEAM_H
#define BERTH_LUA_SEAM_H

#include "core.h"
#include "worker.h"
#include <lauxlib.h>
#include <lua.h>

#define WORKER_TYPE "berth.worker"

/* What stands for a function among a policy file's fields: no file can write it by accident. */
#define SEAM_FUNCTION "\1berth.function"

/* The core that this Lua state's functions share: their first upvalue. */
struct core *seam_core(lua_State *L);

/* A string without NUL, or an argument error: what the system takes as a path or a word. */
const char *seam_check_text(lua_State *L, int arg);

/* Pushes nil, message, name and returns 3. `code` is a negative errno. */
int seam_fail(lua_State *L, int code, const char *doing);

/* spawn(level, argv, envp, cwd, tmpdir, pipes, ready, events); see lua_worker.c. */
int seam_spawn(lua_State *L);

/* load_policy(text, name); see lua_policy.c. */
int seam_load_policy(lua_State *L);

/* machine(); see lua_machine.c. */
int seam_machine(lua_State *L);

/* Makes the metatable of policies. */
void seam_open_policy(lua_State *L);

/* Makes the metatable of workers. */
void seam_open_worker(lua_State *L);

/* Pushes an event of a worker and returns how many values. */
int seam_push_worker_event(lua_State *L, const struct event *event);

#endif
