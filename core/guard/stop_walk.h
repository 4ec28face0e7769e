/* stop_walk.h: how a subreaper kills every descendant, however they fork, and knows that it did. */
#ifndef BERTH_STOP_WALK_H
#define BERTH_STOP_WALK_H

#include <stdbool.h>
#include <sys/types.h>

struct reaper {
  pid_t worker;     /* whose wait status is to be reported */
  int worker_pidfd; /* opened before anything was reaped */
  int report_fd;    /* takes native ints, see guard.h; never blocks */
};

void report(const struct reaper *reaper, int word);

/* Reaps all that is dead. False when no child is left at all. */
bool reap(const struct reaper *reaper);

/* Returns when no descendant is left, however long that takes. SIGCHLD must be blocked, and the
 * caller a subreaper. */
void stop_walk(const struct reaper *reaper);

#endif
