/* arena.h: C memory that dies with a slot of the Lua stack, for libraries that call back into Lua.
 *
 * A Lua error is a longjmp. It skips the frames of a C library between the callback that raised and
 * the pcall that catches, and so whatever free() they held in store. An arena makes that harmless:
 * every block is taken from it, and all are freed together when the slot is closed, by return or by
 * error, in whatever state the library was left. A library that owns nothing else is thus safe to
 * jump out of, as long as it is never entered again with the same blocks.
 *
 * Ownership: the userdata owns the blocks; the arena is valid until its slot is closed.
 * Errors: raises "not enough memory". Memory comes from the state's own allocator, so that the
 * state's limit counts it, and taking it never runs the garbage collector.
 */
#ifndef BERTH_ARENA_H
#define BERTH_ARENA_H

#include <lua.h>
#include <stddef.h>

struct arena;

/* Once per state, before the first arena_open. */
void arena_register(lua_State *L);

/* Pushes an empty arena into a slot that is closed when the calling C function ends. */
struct arena *arena_open(lua_State *L);

/* A block with the first bytes of `memory` (NULL: a new one), which is no longer valid then. If it
 * raises, `memory` is still valid and owned. */
void *arena_resize(struct arena *arena, void *memory, size_t size);

void arena_free(struct arena *arena, void *memory); /* NULL-safe */

#endif
