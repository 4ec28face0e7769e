/* orphans.h: for a berth that is process 1 of a container: every orphan there becomes its child,
 * and stays a zombie for ever unless it is reaped.
 *
 * Only children that the core did not start are reaped, so no exit status of a worker or guard is
 * taken from it. For the program `berth`; an embedder that is process 1 has reaping of its own.
 */
#ifndef BERTH_ORPHANS_H
#define BERTH_ORPHANS_H

#include "core.h"

/* From now on orphans are reaped as they die. Does nothing unless we are process 1. */
int core_reap_orphans(struct core *core);

#endif
