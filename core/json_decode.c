/* Decoding: yajl cuts the text into events, and each builds its Lua value at once, with no tree in
 * between.
 *
 * The values under construction live on the Lua stack, two slots a level:
 *   array, its length so far      an integer tells the next value that it is an element
 *   object, a member's name       a string tells the next value that it is that member's
 *
 * The callbacks may raise a memory error through yajl's frames. That is safe: these hold nothing
 * but memory from the arena, which is freed without yajl's help, and the handle is never used
 * again.
 */
#include "arena.h"
#include "json_functions.h"
#include "json_number.h"
#include "utf8.h"

#include <lauxlib.h>
#include <stdbool.h>
#include <string.h>
#include <yajl/yajl_parse.h>

enum {
  DEPTH_MAX = 10000,
  VALUES_DEFAULT = 1000000,
  SLOTS_PER_LEVEL = 8, /* two that stay, the rest to work with */
  SHORT_NUMBER = 64,
};

struct decoder {
  lua_State *L;
  struct arena *arena;
  yajl_handle yajl;
  const char *text;
  size_t length;
  size_t value_end; /* of the last one that was stored */
  bool at_end;      /* all text was passed: yajl settles what it still holds */
  lua_Integer depth;
  lua_Integer max_depth;
  lua_Integer values;
  lua_Integer max_values;
};

static size_t bytes_read(const struct decoder *decoder) {
  return decoder->at_end ? decoder->length : yajl_get_bytes_consumed(decoder->yajl);
}

static bool refuse_syntax(lua_State *L, size_t index, const char *reason) {
  lua_pushfstring(L, "not JSON at byte %I: %s", (lua_Integer)index + 1, reason);
  return false;
}

/* --- What yajl lets pass --- */

static bool check_utf8(const struct decoder *decoder) {
  size_t valid = utf8_valid_prefix(decoder->text, decoder->length);
  return valid == decoder->length || refuse_syntax(decoder->L, valid, "invalid UTF-8");
}

/* yajl takes vertical tab and form feed for white space; JSON has no place for them raw. */
static bool check_absent(const struct decoder *decoder, char byte) {
  const char *found = memchr(decoder->text, byte, decoder->length);
  return !found ||
         refuse_syntax(decoder->L, (size_t)(found - decoder->text), "invalid control character");
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = (char)(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The UTF-16 unit that an escape \uXXXX at `s` stands for, or -1. */
static int escaped_unit(const char *s, const char *end) {
  if (end - s < 6 || s[0] != '\\' || s[1] != 'u') return -1;
  int unit = 0;
  for (int i = 2; i < 6; i++) {
    int digit = hex_digit(s[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

static bool is_high_surrogate(int unit) { return unit >= 0xd800 && unit <= 0xdbff; }
static bool is_low_surrogate(int unit) { return unit >= 0xdc00 && unit <= 0xdfff; }

/* How long the escape at `s` is, a pair of surrogates counting as one; 0 for a lone surrogate. */
static ptrdiff_t escape_length(const char *s, const char *end) {
  int unit = escaped_unit(s, end);
  if (is_high_surrogate(unit)) return is_low_surrogate(escaped_unit(s + 6, end)) ? 12 : 0;
  if (is_low_surrogate(unit)) return 0;
  return end - s < 2 ? 1 : 2;
}

/* yajl turns a lone surrogate into "?" or into bytes that are no UTF-8. A backslash outside a
 * string is an error anyway, so that all of them can be looked at without knowing where strings
 * begin. */
static bool check_surrogates(const struct decoder *decoder) {
  const char *end = decoder->text + decoder->length;
  const char *at = decoder->text;
  while ((at = memchr(at, '\\', (size_t)(end - at)))) {
    ptrdiff_t length = escape_length(at, end);
    if (length == 0)
      return refuse_syntax(decoder->L, (size_t)(at - decoder->text), "lone surrogate escape");
    at += length;
  }
  return true;
}

static bool check_text(const struct decoder *decoder) {
  return check_utf8(decoder) && check_absent(decoder, '\v') && check_absent(decoder, '\f') &&
         check_surrogates(decoder);
}

/* --- Budgets, before anything is made --- */

static bool admit_value(struct decoder *decoder) {
  if (decoder->values++ < decoder->max_values) return true;
  lua_pushfstring(decoder->L, "more than %I JSON values at byte %I", decoder->max_values,
                  (lua_Integer)bytes_read(decoder));
  return false;
}

static bool admit_level(struct decoder *decoder) {
  if (!admit_value(decoder)) return false;
  if (decoder->depth == decoder->max_depth) {
    lua_pushfstring(decoder->L, "JSON nested deeper than %I at byte %I", decoder->max_depth,
                    (lua_Integer)bytes_read(decoder));
    return false;
  }
  luaL_checkstack(decoder->L, SLOTS_PER_LEVEL, "JSON");
  decoder->depth++;
  return true;
}

/* --- Values --- */

/* stack: array, length, value -> array, length + 1; or object, name, value -> object.
 * A value at the top level stays where it is. */
static bool store_value(struct decoder *decoder) {
  lua_State *L = decoder->L;
  decoder->value_end = bytes_read(decoder);
  if (decoder->depth == 0) return true;
  if (lua_isinteger(L, -2)) {
    lua_Integer length = lua_tointeger(L, -2) + 1;
    lua_rawseti(L, -3, length);
    lua_pop(L, 1);
    lua_pushinteger(L, length);
  } else {
    lua_rawset(L, -3);
  }
  return true;
}

static int on_null(void *context) {
  struct decoder *decoder = context;
  if (!admit_value(decoder)) return false;
  lua_pushvalue(decoder->L, lua_upvalueindex(JSON_UPVALUE_NULL));
  return store_value(decoder);
}

static int on_boolean(void *context, int value) {
  struct decoder *decoder = context;
  if (!admit_value(decoder)) return false;
  lua_pushboolean(decoder->L, value);
  return store_value(decoder);
}

static int on_string(void *context, const unsigned char *bytes, size_t length) {
  struct decoder *decoder = context;
  if (!admit_value(decoder)) return false;
  lua_pushlstring(decoder->L, (const char *)bytes, length);
  return store_value(decoder);
}

/* yajl's text does not end with NUL, which strtod needs. */
static bool parse_float(struct decoder *decoder, const char *text, size_t length, double *value) {
  char buffer[SHORT_NUMBER];
  char *copy = length < sizeof buffer ? buffer : arena_resize(decoder->arena, NULL, length + 1);
  memcpy(copy, text, length);
  copy[length] = '\0';
  bool fits = json_parse_float(copy, value);
  if (copy != buffer) arena_free(decoder->arena, copy);
  return fits;
}

static bool push_float(struct decoder *decoder, const char *text, size_t length) {
  double value;
  if (parse_float(decoder, text, length, &value)) {
    lua_pushnumber(decoder->L, value);
    return true;
  }
  lua_pushfstring(decoder->L, "number too large for a float at byte %I",
                  (lua_Integer)bytes_read(decoder));
  return false;
}

static int on_number(void *context, const char *text, size_t length) {
  struct decoder *decoder = context;
  if (!admit_value(decoder)) return false;
  int64_t integer;
  if (json_parse_integer(text, length, &integer))
    lua_pushinteger(decoder->L, integer);
  else if (!push_float(decoder, text, length))
    return false;
  return store_value(decoder);
}

static int on_start_map(void *context) {
  struct decoder *decoder = context;
  if (!admit_level(decoder)) return false;
  lua_newtable(decoder->L);
  return true;
}

static int on_map_key(void *context, const unsigned char *bytes, size_t length) {
  struct decoder *decoder = context;
  lua_pushlstring(decoder->L, (const char *)bytes, length);
  return true;
}

static int on_end_map(void *context) {
  struct decoder *decoder = context;
  decoder->depth--;
  return store_value(decoder);
}

static int on_start_array(void *context) {
  struct decoder *decoder = context;
  if (!admit_level(decoder)) return false;
  lua_newtable(decoder->L);
  lua_pushvalue(decoder->L, lua_upvalueindex(JSON_UPVALUE_ARRAY_MT));
  lua_setmetatable(decoder->L, -2);
  lua_pushinteger(decoder->L, 0);
  return true;
}

static int on_end_array(void *context) {
  struct decoder *decoder = context;
  lua_pop(decoder->L, 1); /* the length */
  decoder->depth--;
  return store_value(decoder);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_map,
    .yajl_map_key = on_map_key,
    .yajl_end_map = on_end_map,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_end_array,
};

/* --- Running yajl --- */

static void open_yajl(struct decoder *decoder) {
  decoder->arena = arena_open(decoder->L);
  yajl_alloc_funcs memory = json_memory(decoder->arena);
  decoder->yajl = yajl_alloc(&callbacks, &memory, decoder);
  yajl_config(decoder->yajl, yajl_dont_validate_strings, 1);  /* check_utf8 is stricter */
  yajl_config(decoder->yajl, yajl_allow_trailing_garbage, 1); /* and so is check_end */
}

static bool starts_with(const char *text, const char *start) {
  return strncmp(text, start, strlen(start)) == 0;
}

/* The first byte behind the last value that is no white space. */
static size_t behind_value(const struct decoder *decoder) {
  return decoder->value_end + strspn(decoder->text + decoder->value_end, " \t\r\n");
}

/* The index of the byte at fault. yajl's offset points behind a misplaced token and behind a byte
 * that starts none, but at a byte that spoils a token it has begun, and nowhere in particular where
 * a comma is missing. */
static size_t error_index(const struct decoder *decoder, const char *error) {
  if (decoder->at_end) return decoder->length;
  if (starts_with(error, "parse error: after")) return behind_value(decoder);
  size_t offset = yajl_get_bytes_consumed(decoder->yajl);
  bool behind = starts_with(error, "parse error") ||
                starts_with(error, "lexical error: invalid char in json text");
  return behind && offset > 0 ? offset - 1 : offset;
}

/* yajl's "lexical error: invalid char in json text.\n" without its frame. */
static void refuse_as_yajl(struct decoder *decoder) {
  char *error = (char *)yajl_get_error(decoder->yajl, 0, NULL, 0);
  char *reason = strstr(error, ": ");
  reason = reason ? reason + 2 : error;
  reason[strcspn(reason, ".\n")] = '\0';
  refuse_syntax(decoder->L, error_index(decoder, error), reason);
}

/* yajl itself would take a string cut short behind the value for white space. */
static bool check_end(const struct decoder *decoder) {
  size_t at = behind_value(decoder);
  return at == decoder->length || refuse_syntax(decoder->L, at, "text behind the value");
}

/* Pushes the value, or a message. */
static bool parse(struct decoder *decoder) {
  open_yajl(decoder);
  const unsigned char *text = (const unsigned char *)decoder->text;
  yajl_status status = yajl_parse(decoder->yajl, text, decoder->length);
  if (status == yajl_status_ok) {
    decoder->at_end = true;
    status = yajl_complete_parse(decoder->yajl);
  }
  if (status == yajl_status_error) refuse_as_yajl(decoder);
  return status == yajl_status_ok && check_end(decoder);
}

int json_decode(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  struct decoder decoder = {
      .L = L,
      .max_depth = json_check_budget(L, 2, JSON_DEFAULT_DEPTH, DEPTH_MAX),
      .max_values = json_check_budget(L, 3, VALUES_DEFAULT, LUA_MAXINTEGER),
  };
  decoder.text = lua_tolstring(L, 1, &decoder.length);
  lua_settop(L, 1);
  return check_text(&decoder) && parse(&decoder) ? 1 : json_failure(L);
}
