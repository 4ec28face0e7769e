#include "arena.h"

#include <lauxlib.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

#define ARENA_MT "berth.arena"

struct block {
  struct block *previous;
  struct block *next;
  size_t size; /* of the whole allocation: Lua's allocators want to be told */
  alignas(max_align_t) unsigned char bytes[];
};

struct arena {
  lua_State *L; /* that opened it, and runs while it is open: errors are raised on it */
  struct block *first;
};

static struct block *block_of(void *memory) {
  return (struct block *)((unsigned char *)memory - offsetof(struct block, bytes));
}

static void *allocate(lua_State *L, void *block, size_t old_size, size_t new_size) {
  void *context;
  lua_Alloc function = lua_getallocf(L, &context);
  return function(context, block, old_size, new_size);
}

/* Makes the neighbours of a new or moved block point to it. */
static void link_block(struct arena *arena, struct block *block) {
  if (block->previous)
    block->previous->next = block;
  else
    arena->first = block;
  if (block->next) block->next->previous = block;
}

static void release_blocks(lua_State *L, struct arena *arena) {
  while (arena->first) {
    struct block *block = arena->first;
    arena->first = block->next;
    allocate(L, block, block->size, 0);
  }
}

/* Lua keeps this very string ready, so that pushing it needs no memory. */
static _Noreturn void raise_memory_error(lua_State *L) {
  lua_pushliteral(L, "not enough memory");
  lua_error(L);
  abort(); /* lua_error does not return, but is not declared so */
}

void *arena_resize(struct arena *arena, void *memory, size_t size) {
  struct block *old = memory ? block_of(memory) : NULL;
  if (size > SIZE_MAX - sizeof(struct block)) raise_memory_error(arena->L);
  size += sizeof(struct block);
  struct block *block = allocate(arena->L, old, old ? old->size : 0, size);
  if (!block) raise_memory_error(arena->L);
  if (!old) *block = (struct block){.next = arena->first};
  block->size = size;
  link_block(arena, block);
  return block->bytes;
}

void arena_free(struct arena *arena, void *memory) {
  if (!memory) return;
  struct block *block = block_of(memory);
  if (block->previous)
    block->previous->next = block->next;
  else
    arena->first = block->next;
  if (block->next) block->next->previous = block->previous;
  allocate(arena->L, block, block->size, 0);
}

static int close_arena(lua_State *L) {
  release_blocks(L, luaL_checkudata(L, 1, ARENA_MT));
  return 0;
}

/* The slot's __close frees; __gc is there for an arena whose slot could not be marked. */
static const luaL_Reg metamethods[] = {
    {"__close", close_arena},
    {"__gc", close_arena},
    {NULL, NULL},
};

/* Fills the metatable even if it exists: a memory error can have left it half filled. */
void arena_register(lua_State *L) {
  luaL_newmetatable(L, ARENA_MT);
  luaL_setfuncs(L, metamethods, 0);
  lua_pop(L, 1);
}

struct arena *arena_open(lua_State *L) {
  struct arena *arena = lua_newuserdatauv(L, sizeof *arena, 0);
  *arena = (struct arena){.L = L};
  luaL_setmetatable(L, ARENA_MT);
  lua_toclose(L, -1);
  return arena;
}
