/* containment.h: the set that holds every descendant of one worker, and the means to empty it.
 * No loop, no Lua: plain descriptors, so that it can be tested alone. worker.c polls them.
 *
 * Ownership: the caller's memory (init by containment_start, given back by containment_release).
 * Errors: negative errno values. Nothing here blocks for longer than the start itself.
 */
#ifndef BERTH_CONTAINMENT_H
#define BERTH_CONTAINMENT_H

#include "spawn.h"
#include <stdbool.h>

/* In rising order of what they hold; "cgroup" comes with the sandbox. */
enum containment_level { LEVEL_GROUP, LEVEL_SUBREAPER, LEVEL_PIDNS, LEVEL_COUNT };

enum containment_end {
  CONTAINMENT_ALIVE,         /* not known to be empty yet: ask again */
  CONTAINMENT_EMPTY,         /* proven empty */
  CONTAINMENT_UNCONFIRMABLE, /* the prover is gone without its proof: nothing will ever prove it */
};

struct containment {
  enum containment_level level;
  pid_t pid;         /* of root, as the host sees it */
  int root_pidfd;    /* guard, or the worker itself at level group; readable when it is dead */
  int leader_pidfd;  /* the worker; at level group the same number as root_pidfd */
  int status_fd;     /* the guard's reports, see guard/guard.h; -1 at group. Non-blocking. */
  int lease_fd;      /* write end, held by the host alone; -1 at group */
  bool killing;      /* containment_kill was called */
  bool root_reaped;  /* waitid has been done; never signal by number after this */
  bool leader_known; /* leader_status is valid */
  bool leader_told;  /* containment_leader_exited has said so */
  bool emptied;      /* a subreaper guard has reported that nothing is left */
  int leader_status; /* as from waitpid; -1 (neither exited nor signalled) where somebody else in
                        this process reaped it: an embedder that ignores SIGCHLD */
  enum containment_end end; /* what containment_poll said last; final unless ALIVE */
};

/* Starts the worker at exactly this level, or fails with nothing left behind. On success the
 * worker's program has been executed. Blocks signals around the clone. */
int containment_start(struct containment *containment, struct spawner *spawner,
                      enum containment_level level, const struct spawn_request *request,
                      struct spawn_error *error);

/* Begins to empty it, at once and without grace. Idempotent, never blocks. */
void containment_kill(struct containment *containment);

/* Signals the worker's process group (TERM, INT) while the leader lives. Through the leader's pidfd
 * with PIDFD_SIGNAL_PROCESS_GROUP; on kernels older than 6.9 through the pidfd to the leader alone
 * (group level: to the group, the unreaped leader holding the number). Never a number that could
 * have been reused. -ESRCH once it is gone. */
int containment_signal(struct containment *containment, int signal);

/* Has the worker itself exited? Reads status_fd, or at level group asks waitid without reaping more
 * than needed. True once; then leader_known and leader_status are set. Never blocks. */
bool containment_leader_exited(struct containment *containment);

/* Where the end stands. Reaps the guard when it is dead. Call when root_pidfd is readable and on a
 * 1 ms tick while killing. */
enum containment_end containment_poll(struct containment *containment);

/* Closes every descriptor. Only after EMPTY, or when giving up (closing the lease makes a guard
 * that still lives go on sweeping by itself). */
void containment_release(struct containment *containment);

/* Tries the level by starting the guard's probe in it and killing it. 0, or a negative errno with
 * one clear sentence of at most `size` bytes in `why` that says what the kernel refused. */
int containment_probe(struct spawner *spawner, enum containment_level level, char *why,
                      size_t size);

/* "pidns", "subreaper", "group". */
const char *containment_level_name(enum containment_level level);

/* How it is emptied: "init_kill", "stop_walk", "group_kill". */
const char *containment_means(enum containment_level level);

/* Kills (SIGKILL, by pidfd, rechecked) every process of ours whose environment says
 * TMPDIR=<tmpdir>. The last resort behind CONTAINMENT_UNCONFIRMABLE; proves nothing. Returns how
 * many it found. */
int containment_sweep(const char *tmpdir);

#endif
