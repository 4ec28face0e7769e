/* lua_machine.c: machine.h for Lua. */
#include "lua_seam.h"
#include "machine.h"

static void set_limit(lua_State *L, const char *name, const struct rlimit *limit) {
  if (limit->rlim_cur == RLIM_INFINITY)
    lua_pushliteral(L, "unlimited");
  else
    lua_pushinteger(L, (lua_Integer)limit->rlim_cur);
  lua_setfield(L, -2, name);
}

static void set_boolean(lua_State *L, const char *name, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, name);
}

/* machine() -> { kernel, architecture, user, landlock_abi, seccomp, clone3, group_signals,
 * open_files, processes }: the last two are soft limits, integers or "unlimited". */
int seam_machine(lua_State *L) {
  struct machine machine;
  machine_look(&machine);
  /* What the workers get, not what the host has raised for itself. */
  machine.open_files = seam_core(L)->spawner.open_files;
  lua_createtable(L, 0, 9);
  lua_pushstring(L, machine.system.release);
  lua_setfield(L, -2, "kernel");
  lua_pushstring(L, machine.system.machine);
  lua_setfield(L, -2, "architecture");
  lua_pushinteger(L, machine.user);
  lua_setfield(L, -2, "user");
  lua_pushinteger(L, machine.landlock_abi);
  lua_setfield(L, -2, "landlock_abi");
  set_boolean(L, "seccomp", machine.seccomp);
  set_boolean(L, "clone3", machine.clone3);
  set_boolean(L, "group_signals", machine.group_signals);
  set_limit(L, "open_files", &machine.open_files);
  set_limit(L, "processes", &machine.processes);
  return 1;
}
