/* main.c: the program `berth`: a Lua state with the core built in, handed to lua/berth/cli. */
#include <fcntl.h>
#include <lauxlib.h>
#include <limits.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_HOST = 125 };

int luaopen_berth_core(lua_State *L);

/* The Lua files stand in ../lua of the build folder, or in ../share/berth/lua once installed. */
static void set_path(lua_State *L) {
  char exe[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
  if (length < 0) luaL_error(L, "can't read /proc/self/exe, which tells where the Lua files are");
  exe[length] = '\0';
  *strrchr(exe, '/') = '\0';
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_pushfstring(L,
                  "%s/../lua/?.lua;%s/../lua/?/init.lua;%s/../share/berth/lua/?.lua;"
                  "%s/../share/berth/lua/?/init.lua;%s;" LUA_PATH_DEFAULT,
                  exe, exe, exe, exe, lua_tostring(L, -1));
  lua_setfield(L, -3, "path");
  lua_pop(L, 2);
}

static int traceback(lua_State *L) {
  const char *message = lua_tostring(L, 1);
  if (!message) message = luaL_tolstring(L, 1, NULL);
  luaL_traceback(L, L, message, 1);
  return 1;
}

/* stack: argc, argv -> exit code */
static int body(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  luaL_openlibs(L);
  set_path(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_berth_core);
  lua_setfield(L, -2, "berth.core");
  lua_pop(L, 1);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "berth.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_createtable(L, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 1);
  return 1;
}

/* A program may be started without its first three descriptors. The next files that it opens would
 * get their numbers: libuv aborts on that, and a message could land in a worker's pipe. They are
 * opened so that using them still fails as it should: nothing to read, nowhere to write. */
static void open_standard_fds(void) {
  for (int fd = 0; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv) {
  open_standard_fds();
  lua_State *L = luaL_newstate();
  if (!L) {
    fputs("berth: not enough memory to start\n", stderr);
    return EXIT_HOST;
  }
  lua_pushcfunction(L, traceback);
  lua_pushcfunction(L, body);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int code = EXIT_HOST;
  if (lua_pcall(L, 2, 1, 1) == LUA_OK)
    code = (int)lua_tointeger(L, -1);
  else
    fprintf(stderr, "berth: %s\n", lua_tostring(L, -1));
  lua_close(L);
  return code;
}
