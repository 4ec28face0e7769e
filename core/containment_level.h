/* containment_level.h: what the levels of containment have in common and how each differs.
 * Internal to containment*.c.
 */
#ifndef BERTH_CONTAINMENT_LEVEL_H
#define BERTH_CONTAINMENT_LEVEL_H

#include "containment.h"

struct level_ops {
  const char *name;
  const char *means; /* how it is emptied, for certificates */
  struct spawn_plan (*plan)(void);
  void (*kill)(struct containment *containment);
  int (*signal)(struct containment *containment, int signal);
  /* Learns leader_known and leader_status if they can be learnt. */
  void (*look_at_leader)(struct containment *containment);
  enum containment_end (*poll)(struct containment *containment);
};

extern const struct level_ops level_group, level_subreaper, level_pidns;

/* Is the process dead, reaped or not? A pidfd says so even if its status was taken by others. */
bool pidfd_is_dead(int pidfd);

/* Takes the dead root's status off the kernel, once. False while it lives. */
bool reap_root(struct containment *containment);

/* What the levels with a guard share. */
void read_reports(struct containment *containment);
int signal_leader_group(struct containment *containment, int signal);

#endif
