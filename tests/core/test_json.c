/* JSON where Lua code cannot look: memory that runs out at every single allocation, memory that
 * must go back at once, and a locale that writes 1.5 as 1,5. For what is accepted see
 * json_spec.lua. */
#include "check.h"
#include "json.h"

#include <lauxlib.h>
#include <locale.h>
#include <stdbool.h>

enum { UNLIMITED = -1, DEPTH = 300, TEXT_SIZE = 20000 };

struct heap {
  size_t used;
  long left; /* allocations until none succeeds any more, or UNLIMITED */
};

/* Shrinking and freeing always succeed, as Lua demands. */
static void *heap_alloc(void *context, void *block, size_t old_size, size_t new_size) {
  struct heap *heap = context;
  if (!block) old_size = 0; /* it is a type's number then */
  if (new_size > old_size && heap->left == 0) return NULL;
  if (new_size > old_size && heap->left > 0) heap->left--;
  heap->used += new_size - old_size;
  if (new_size > 0) return realloc(block, new_size);
  free(block);
  return NULL;
}

static lua_State *open_state(struct heap *heap) {
  *heap = (struct heap){.left = UNLIMITED};
  lua_State *L = lua_newstate(heap_alloc, heap);
  CHECK(L);
  return L;
}

/* -- deeds: Lua functions (text) -> whether it went as it should ------------------------------- */

/* stack: text, ... -> text, ..., decode's two results */
static void decode(lua_State *L) {
  luaopen_berth_json(L);
  lua_getfield(L, -1, "decode");
  lua_pushvalue(L, 1);
  lua_pushinteger(L, DEPTH);
  lua_call(L, 2, 2);
  lua_remove(L, -3); /* the module */
}

static int round_trip(lua_State *L) {
  luaopen_berth_json(L);
  lua_getfield(L, -1, "encode");
  decode(L);
  lua_call(L, 2, 1); /* with the absent message as no budget */
  lua_pushboolean(L, lua_rawequal(L, 1, -1));
  return 1;
}

static int accept(lua_State *L) {
  decode(L);
  lua_pushboolean(L, !lua_isnil(L, -2));
  return 1;
}

static int refuse(lua_State *L) {
  decode(L);
  lua_pushboolean(L, lua_isnil(L, -2) && lua_isstring(L, -1));
  return 1;
}

/* -- memory ------------------------------------------------------------------------------------ */

/* Does the deed in L, and once more with all memory if it ran out: nothing may be left half done.
 */
static bool done_within(lua_State *L, struct heap *heap, lua_CFunction deed, long allowed) {
  lua_pushcfunction(L, deed);
  lua_pushvalue(L, 1);
  heap->left = allowed;
  bool done = lua_pcall(L, 1, 1, 0) == LUA_OK;
  heap->left = UNLIMITED;
  if (done)
    CHECK(lua_toboolean(L, -1));
  else
    CHECK(strstr(lua_tostring(L, -1), "memory") || strstr(lua_tostring(L, -1), "overflow"));
  return done || (done_within(L, heap, deed, UNLIMITED), false);
}

/* How many allocations the deed takes, after trying it with every smaller number. */
static long allocations_of(lua_CFunction deed, const char *text) {
  for (long allowed = 0;; allowed++) {
    struct heap heap;
    lua_State *L = open_state(&heap);
    lua_pushstring(L, text);
    bool done = done_within(L, &heap, deed, allowed);
    lua_close(L);
    CHECK_INT(0, heap.used);
    if (done) return allowed;
  }
}

/* yajl's buffers start at 2 KiB, so that only a longer string with an escape makes one grow. */
TEST(memory_runs_out_in_a_round_trip) {
  char text[TEXT_SIZE], letters[4000];
  memset(letters, 'x', sizeof letters);
  int length = snprintf(text, sizeof text, "{\"a\":\"\\n%.*s\",\"b%.*s\":[1,-2.5,null,true,[],{}]}",
                        4000, letters, 3000, letters);
  CHECK(length > 7000 && length < TEXT_SIZE);
  CHECK(allocations_of(round_trip, text) > 20);
}

/* yajl's stack of states grows at every 128th level. */
TEST(memory_runs_out_in_a_deep_nest) {
  char text[2 * DEPTH + 1] = "";
  memset(text, '[', DEPTH);
  memset(text + DEPTH, ']', DEPTH);
  CHECK(allocations_of(accept, text) > DEPTH);
}

TEST(memory_runs_out_in_a_long_number) {
  char text[200] = "";
  memset(text, '7', sizeof text - 1);
  CHECK(allocations_of(accept, text) > 10);
}

TEST(memory_runs_out_in_a_refusal) {
  char text[5000] = "";
  memset(text, 'x', sizeof text - 1);
  text[0] = '"';
  CHECK(allocations_of(refuse, text) > 10);
}

/* The collector is off: what comes back came back when decode returned. The text is cut short, so
 * yajl copies all of it. */
TEST(memory_goes_back_without_the_collector) {
  struct heap heap;
  lua_State *L = open_state(&heap);
  lua_gc(L, LUA_GCSTOP);
  char text[TEXT_SIZE] = "";
  memset(text, 'x', sizeof text - 1);
  text[0] = '"';
  lua_pushstring(L, text);
  CHECK(done_within(L, &heap, refuse, UNLIMITED));
  size_t before = heap.used;
  CHECK(done_within(L, &heap, refuse, UNLIMITED));
  CHECK(heap.used - before < TEXT_SIZE / 4);
  lua_close(L);
  CHECK_INT(0, heap.used);
}

/* -- the locale -------------------------------------------------------------------------------- */

static int run(const char *format, const char *folder) {
  char command[512];
  (void)snprintf(command, sizeof command, format, folder);
  return system(command); // NOLINT(cert-env33-c): a fixed program
}

/* Compiles the locale and loads it; the files are not needed any more then. */
static bool use_german_locale(void) {
  char folder[256];
  const char *parent = getenv("TMPDIR");
  (void)snprintf(folder, sizeof folder, "%s/berth-locale-XXXXXX", parent ? parent : "/tmp");
  CHECK(mkdtemp(folder));
  int status = run("localedef -i de_DE -f UTF-8 --no-archive '%s/de_DE.UTF-8'", folder);
  (void)setenv("LOCPATH", folder, 1);
  bool german = status == 0 && setlocale(LC_NUMERIC, "de_DE.UTF-8");
  (void)unsetenv("LOCPATH");
  CHECK_INT(0, run("rm -rf '%s'", folder));
  return german && *localeconv()->decimal_point == ',';
}

TEST(a_decimal_comma_changes_nothing) {
  if (access("/usr/share/i18n/locales/de_DE", R_OK) != 0) SKIP("package locales is missing");
  CHECK(use_german_locale());
  struct heap heap;
  lua_State *L = open_state(&heap);
  lua_pushstring(L, "[0.1,-2.5,1e+300]");
  bool done = done_within(L, &heap, round_trip, UNLIMITED);
  lua_close(L);
  (void)setlocale(LC_NUMERIC, "C");
  CHECK(done);
}

RUN_TESTS()
