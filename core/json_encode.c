/* Encoding: one walk over the Lua value, which yajl writes down piece by piece into a buffer.
 *
 * Every function here finds its value on top of the stack and leaves it there; if it returns false
 * it has pushed a message. Tables are read raw, so no Lua code of theirs runs. A finalizer may run
 * at an allocation and change them; therefore names are anchored, and a value that has vanished is
 * a nil like any other.
 *
 * The buffer lives in an arena, and growing it may raise through yajl's frames: see json_decode.c.
 */
#include "arena.h"
#include "json_functions.h"
#include "json_number.h"
#include "utf8.h"

#include <lauxlib.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_gen.h>

enum {
  BYTES_DEFAULT = 64 << 20,
  BUFFER_START = 512,
  SLOTS_PER_LEVEL = 8,
};

struct encoder {
  lua_State *L;
  struct arena *arena;
  yajl_gen yajl;
  int depth;
  char *bytes;
  size_t length;
  size_t capacity;
  size_t max_bytes;
  bool full; /* something did not fit within max_bytes */
};

/* What the keys of a table are. */
struct keys {
  lua_Integer strings;
  lua_Integer integers;
  lua_Integer lowest; /* of the integers */
  lua_Integer highest;
};

/* One name of an object: `index` is its place in the table that anchors it. */
struct name {
  const char *bytes;
  size_t length;
  lua_Integer index;
};

static bool encode_value(struct encoder *encoder);

/* --- The buffer --- */

static void grow(struct encoder *encoder, size_t needed) {
  size_t capacity = encoder->capacity ? encoder->capacity : BUFFER_START;
  while (capacity < needed)
    capacity = capacity > encoder->max_bytes / 2 ? encoder->max_bytes : capacity * 2;
  encoder->bytes = arena_resize(encoder->arena, encoder->bytes, capacity);
  encoder->capacity = capacity;
}

static void on_print(void *context, const char *bytes, size_t length) {
  struct encoder *encoder = context;
  if (encoder->full || length > encoder->max_bytes - encoder->length) {
    encoder->full = true;
    return;
  }
  if (length > encoder->capacity - encoder->length) grow(encoder, encoder->length + length);
  memcpy(encoder->bytes + encoder->length, bytes, length);
  encoder->length += length;
}

static bool check_budget(struct encoder *encoder) {
  if (!encoder->full) return true;
  lua_pushfstring(encoder->L, "JSON longer than %I bytes", (lua_Integer)encoder->max_bytes);
  return false;
}

/* --- Scalars --- */

static bool refuse_number(struct encoder *encoder, const char *what) {
  lua_pushfstring(encoder->L, "%s has no JSON form", what);
  return false;
}

static bool refuse_type(struct encoder *encoder, const char *what, int index) {
  lua_pushfstring(encoder->L, "a %s of type %s has no JSON form", what,
                  luaL_typename(encoder->L, index));
  return false;
}

static bool encode_float(struct encoder *encoder, double value) {
  if (isnan(value)) return refuse_number(encoder, "NaN");
  if (isinf(value)) return refuse_number(encoder, "an infinite number");
  char text[JSON_FLOAT_SIZE];
  yajl_gen_number(encoder->yajl, text, json_format_float(value, text));
  return check_budget(encoder);
}

static bool encode_number(struct encoder *encoder) {
  if (!lua_isinteger(encoder->L, -1)) return encode_float(encoder, lua_tonumber(encoder->L, -1));
  yajl_gen_integer(encoder->yajl, lua_tointeger(encoder->L, -1));
  return check_budget(encoder);
}

static bool encode_string(struct encoder *encoder) {
  size_t length;
  const char *bytes = lua_tolstring(encoder->L, -1, &length);
  size_t valid = utf8_valid_prefix(bytes, length);
  if (valid < length) {
    lua_pushfstring(encoder->L, "string is not valid UTF-8 at byte %I", (lua_Integer)valid + 1);
    return false;
  }
  yajl_gen_string(encoder->yajl, (const unsigned char *)bytes, length);
  return check_budget(encoder);
}

static bool encode_boolean(struct encoder *encoder) {
  yajl_gen_bool(encoder->yajl, lua_toboolean(encoder->L, -1));
  return check_budget(encoder);
}

/* json.null, or something that has no JSON form. */
static bool encode_other(struct encoder *encoder) {
  lua_State *L = encoder->L;
  if (!lua_rawequal(L, -1, lua_upvalueindex(JSON_UPVALUE_NULL)))
    return refuse_type(encoder, "value", -1);
  yajl_gen_null(encoder->yajl);
  return check_budget(encoder);
}

/* --- What a table is --- */

static void count_integer(struct keys *keys, lua_Integer key) {
  bool first = keys->integers++ == 0;
  keys->lowest = first || key < keys->lowest ? key : keys->lowest;
  keys->highest = first || key > keys->highest ? key : keys->highest;
}

static bool refuse_key(struct encoder *encoder, int index) {
  lua_State *L = encoder->L;
  if (lua_type(L, index) != LUA_TNUMBER) return refuse_type(encoder, "table key", index);
  lua_pushfstring(L, "the table key %f has no JSON form", lua_tonumber(L, index));
  return false;
}

static bool count_keys(struct encoder *encoder, struct keys *keys) {
  lua_State *L = encoder->L;
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    if (lua_type(L, -2) == LUA_TSTRING)
      keys->strings++;
    else if (lua_isinteger(L, -2))
      count_integer(keys, lua_tointeger(L, -2));
    else
      return refuse_key(encoder, -2);
    lua_pop(L, 1);
  }
  return true;
}

static bool is_marked_array(lua_State *L) {
  if (!lua_getmetatable(L, -1)) return false;
  bool marked = lua_rawequal(L, -1, lua_upvalueindex(JSON_UPVALUE_ARRAY_MT));
  lua_pop(L, 1);
  return marked;
}

/* --- Arrays --- */

static lua_Integer find_hole(lua_State *L) {
  lua_Integer index = 1;
  while (lua_rawgeti(L, -1, index) != LUA_TNIL) {
    lua_pop(L, 1);
    index++;
  }
  lua_pop(L, 1);
  return index;
}

static bool check_array(struct encoder *encoder, const struct keys *keys) {
  lua_State *L = encoder->L;
  if (keys->strings > 0)
    lua_pushliteral(L, "an array with a string key has no JSON form");
  else if (keys->integers > 0 && keys->lowest < 1)
    lua_pushfstring(L, "an array with the key %I has no JSON form", keys->lowest);
  else if (keys->highest != keys->integers)
    lua_pushfstring(L, "an array with a hole at %I has no JSON form", find_hole(L));
  else
    return true;
  return false;
}

static bool encode_array(struct encoder *encoder, const struct keys *keys) {
  if (!check_array(encoder, keys)) return false;
  yajl_gen_array_open(encoder->yajl);
  for (lua_Integer i = 1; i <= keys->integers; i++) {
    lua_rawgeti(encoder->L, -1, i);
    if (!encode_value(encoder)) return false;
    lua_pop(encoder->L, 1);
  }
  yajl_gen_array_close(encoder->yajl);
  return check_budget(encoder);
}

/* --- Objects --- */

static int compare_names(const void *left, const void *right) {
  const struct name *a = left;
  const struct name *b = right;
  size_t shared = a->length < b->length ? a->length : b->length;
  int order = memcmp(a->bytes, b->bytes, shared);
  return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* stack: object, anchor, name -> the same, with the name anchored. */
static struct name anchor_name(lua_State *L, lua_Integer index) {
  struct name name = {.index = index};
  name.bytes = lua_tolstring(L, -1, &name.length);
  lua_pushvalue(L, -1);
  lua_rawseti(L, -3, index);
  return name;
}

/* stack: object -> object, anchor. Returns how many names it found: a finalizer that ran when the
 * anchor was made may have left other keys than those counted. */
static size_t collect_names(lua_State *L, struct name *names, size_t count) {
  size_t found = 0;
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, -3)) {
    lua_pop(L, 1); /* the value */
    if (lua_type(L, -1) != LUA_TSTRING || found == count) continue;
    names[found] = anchor_name(L, (lua_Integer)found + 1);
    found++;
  }
  return found;
}

/* stack: object, anchor */
static bool encode_member(struct encoder *encoder, const struct name *name) {
  lua_State *L = encoder->L;
  lua_rawgeti(L, -1, name->index);
  if (!encode_string(encoder)) return false;
  lua_rawget(L, -3);
  if (!encode_value(encoder)) return false;
  lua_pop(L, 1);
  return true;
}

static bool encode_members(struct encoder *encoder, struct name *names, size_t count) {
  count = collect_names(encoder->L, names, count);
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 0; i < count; i++)
    if (!encode_member(encoder, &names[i])) return false;
  lua_pop(encoder->L, 1); /* the anchor */
  return true;
}

static bool encode_object(struct encoder *encoder, const struct keys *keys) {
  if (keys->integers > 0) {
    lua_pushfstring(encoder->L, "an object with the key %I has no JSON form", keys->lowest);
    return false;
  }
  size_t count = (size_t)keys->strings;
  struct name *names = arena_resize(encoder->arena, NULL, count * sizeof *names);
  yajl_gen_map_open(encoder->yajl);
  bool encoded = encode_members(encoder, names, count);
  yajl_gen_map_close(encoder->yajl);
  arena_free(encoder->arena, names);
  return encoded && check_budget(encoder);
}

/* --- The walk --- */

static bool encode_keyed(struct encoder *encoder) {
  struct keys keys = {0};
  if (!count_keys(encoder, &keys)) return false;
  bool like_array = keys.strings == 0 && keys.integers > 0 && keys.lowest >= 1;
  return is_marked_array(encoder->L) || like_array ? encode_array(encoder, &keys)
                                                   : encode_object(encoder, &keys);
}

static bool encode_table(struct encoder *encoder) {
  if (encoder->depth == JSON_DEFAULT_DEPTH) {
    lua_pushfstring(encoder->L, "JSON nested deeper than %d, or a table that contains itself",
                    JSON_DEFAULT_DEPTH);
    return false;
  }
  luaL_checkstack(encoder->L, SLOTS_PER_LEVEL, NULL);
  encoder->depth++;
  bool encoded = encode_keyed(encoder);
  encoder->depth--;
  return encoded;
}

static bool encode_value(struct encoder *encoder) {
  switch (lua_type(encoder->L, -1)) {
    case LUA_TBOOLEAN: return encode_boolean(encoder);
    case LUA_TNUMBER: return encode_number(encoder);
    case LUA_TSTRING: return encode_string(encoder);
    case LUA_TTABLE: return encode_table(encoder);
    default: return encode_other(encoder);
  }
}

/* --- Running yajl --- */

/* yajl's own statuses are not looked at: they tell of wrong nesting, of names that are no strings,
 * and of a depth of 128, and the walk does none of these. */
static void open_yajl(struct encoder *encoder) {
  encoder->arena = arena_open(encoder->L);
  yajl_alloc_funcs memory = json_memory(encoder->arena);
  encoder->yajl = yajl_gen_alloc(&memory);
  yajl_gen_config(encoder->yajl, yajl_gen_print_callback, on_print, encoder);
}

int json_encode(lua_State *L) {
  luaL_checkany(L, 1);
  struct encoder encoder = {
      .L = L,
      .max_bytes = (size_t)json_check_budget(L, 2, BYTES_DEFAULT, LUA_MAXINTEGER),
  };
  lua_settop(L, 1);
  open_yajl(&encoder);
  lua_pushvalue(L, 1);
  if (!encode_value(&encoder)) return json_failure(L);
  lua_pushlstring(L, encoder.bytes, encoder.length);
  return 1;
}
