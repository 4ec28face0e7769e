/* spawn_child.h: what the children of a start do until they exec. Internal to spawn.c.
 *
 * Both functions run in clone children that share the host's memory; what they write into `struct
 * start` the host reads afterwards. They never return. The host's thread is suspended until the
 * first child has left that memory (CLONE_VFORK). With a guard that is not the end: the worker
 * waits at the *gate* for the host's word, and the host then waits until the worker has left as
 * well, which it sees by the gate's end: the worker's side closes when it executes its program, or
 * dies.
 */
#ifndef BERTH_SPAWN_CHILD_H
#define BERTH_SPAWN_CHILD_H

#include "spawn.h"

enum {
  SPAWN_STACK = 64 * 1024,
  SPAWN_STACK_GAP = 64 * 1024,
  SPAWN_FD_MIN = 10, /* sources of dup2 lie above all of its targets */
};

struct start {
  const struct spawner *spawner;
  const struct spawn_plan *plan;
  const struct spawn_request *request;
  pid_t host;
  char uid_map[32], gid_map[32];

  /* Read end first; -1 without a guard. */
  int lease[2];
  int report[2];
  int gate[2]; /* sockets: the worker's, the host's */

  /* Written by the children. */
  pid_t worker;     /* as the guard sees it */
  int worker_pidfd; /* in the host's table; -1 until it is made */
  struct spawn_error error;
};

int spawn_guard_child(void *argument); /* a struct start */
int spawn_lone_worker(void *argument); /* likewise */

/* The end to give to clone(): a stack grows downwards. Number 0 or 1. */
char *spawn_stack_end(const struct spawner *spawner, int number);

#endif
