/* json.h: JSON text (RFC 8259) to Lua values and back, strictly and within budgets.
 *
 * Shapes: objects and arrays are tables. Every decoded array carries array_mt, so that [] stays an
 * array. null is the value json.null. An integer that fits a Lua integer is one; every other number
 * is a float (-0, 1.0, 1e3, 2^64), and a float is written so that it is read back as the same
 * float. Strings are valid UTF-8 both ways and may hold NUL. Of members with one name the last
 * wins.
 *
 * Refused: whatever RFC 8259 does not allow, text behind the value, NaN and infinities, numbers too
 * large for a float, lone surrogate escapes, and Lua values that have no JSON form.
 *
 * Budgets: depth and number of values while decoding, bytes while encoding; each is checked before
 * the memory for the next step is taken. Depth 1 is an array or object at the top.
 *
 * Errors: nil and one sentence for what was passed in. A byte number in it counts from 1 and names
 * the byte where the fault became certain: a misplaced token's first or last, and of a text cut
 * short the one behind its end. Raised: only arguments of a wrong type or range, and Lua's own
 * errors of memory and stack; nothing is leaked then.
 *
 * Threads: as for any Lua function, the one that runs the state. The locale has no influence.
 */
#ifndef BERTH_JSON_H
#define BERTH_JSON_H

#include <lua.h>

/* Pushes the module table { decode, encode, array, array_mt, null }:
 *
 *   decode(text [, max_depth = 64 [, max_values = 1000000]]) -> value | nil, message
 *     max_depth is at most 10,000. Members' names are not counted as values.
 *
 *   encode(value [, max_bytes = 64 MiB]) -> text | nil, message
 *     At most 64 deep. A table is an array if it carries array_mt or has the keys 1..n and no
 * others (n > 0), and an object if all its keys are strings; {} is an object. Members are sorted by
 * the bytes of their names. Tables are read raw: no metamethod is called.
 *
 *   array(t) -> t, which carries array_mt from now on; a table with another metatable is refused.
 *
 *   null: tostring gives "null". It and array_mt are the same values at every opening in one state.
 */
int luaopen_berth_json(lua_State *L);

#endif
