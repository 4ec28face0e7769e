/* lua.c: as much of the lua program as the specs need: lua FILE [ARG...] and lua -e TEXT.
 *
 * An instrumented module can only be loaded by an instrumented program. Preloading the sanitizer
 * into lua5.4 would work too, but every child would inherit it, and python3's own leaks would be
 * reported.
 */
#include <lauxlib.h>
#include <lualib.h>
#include <string.h>

static int add_traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

static void set_arg(lua_State *L, int argc, char **argv) {
  lua_createtable(L, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - 1); /* the script is arg[0] */
  }
  lua_setglobal(L, "arg");
}

/* stack: argc, argv */
static int run(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  int is_text = argc > 2 && strcmp(argv[1], "-e") == 0;
  luaL_openlibs(L);
  set_arg(L, argc, argv);
  lua_pushcfunction(L, add_traceback);
  int bad = is_text ? luaL_loadstring(L, argv[2])
                    : luaL_loadfile(L, argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL);
  if (bad != LUA_OK) return lua_error(L);
  int arguments = 0;
  for (int i = 2; !is_text && i < argc; i++, arguments++)
    lua_pushstring(L, argv[i]);
  if (lua_pcall(L, arguments, 0, 3) != LUA_OK) return lua_error(L);
  return 0;
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (!L) return 1;
  lua_pushcfunction(L, run);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int status = lua_pcall(L, 2, 0, 0);
  if (status != LUA_OK) lua_writestringerror("lua: %s\n", luaL_tolstring(L, -1, NULL));
  lua_close(L);
  return status != LUA_OK;
}
