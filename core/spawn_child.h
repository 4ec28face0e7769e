/* spawn_child.h: what the children of a start do until they exec. Internal to spawn.c.
 *
 * Both functions run in a clone child that shares the host's memory while the host's thread is
 * suspended (CLONE_VM|CLONE_VFORK): what they write into `struct start` the host reads afterwards.
 * They never return.
 */
#ifndef BERTH_SPAWN_CHILD_H
#define BERTH_SPAWN_CHILD_H

#include "spawn.h"

enum {
  SPAWN_STACK = 256 * 1024, /* of which a walk over a whole tree can use a part */
  SPAWN_STACK_GAP = 64 * 1024,
  SPAWN_FD_MIN = 10, /* sources of dup2 lie above all of its targets */
};

struct start {
  const struct spawner *spawner;
  const struct spawn_plan *plan;
  const struct spawn_request *request;
  pid_t host;
  int lease_read, lease_write, report_write; /* -1 without a guard */
  char uid_map[32], gid_map[32];

  /* Written by the children. */
  pid_t worker;     /* as the guard sees it; 0 until it runs */
  int worker_pidfd; /* in the host's table; -1 until then */
  struct spawn_error error;
};

int spawn_guard_child(void *start);
int spawn_worker_child(void *start);

/* The end to give to clone(): a stack grows downwards. Number 0 or 1. */
char *spawn_stack_end(const struct spawner *spawner, int number);

#endif
