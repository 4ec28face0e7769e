/* guard.h: what the host and berth-guard agree on. Included by both; no code.
 *
 * The guard is started as `berth-guard MODE WORKER` with an empty environment, "/" as its folder,
 * every signal blocked and only these descriptors: 0, 1, 2 on /dev/null, the *lease* (read end; its
 * EOF says that the host is gone or wants the end) and the *report* pipe (write end).
 * Reports are native ints: the worker's wait status once, when it is reaped, and GUARD_EMPTY last,
 * when a subreaper has no descendant left. A wait status is never negative.
 */
#ifndef BERTH_GUARD_H
#define BERTH_GUARD_H

enum { GUARD_LEASE_FD = 3, GUARD_REPORT_FD = 4 };

enum { GUARD_EMPTY = -1 };

#define GUARD_MODE_PIDNS "pidns"
#define GUARD_MODE_SUBREAPER "subreaper"
#define GUARD_MODE_PROBE "probe" /* a worker that does nothing until it is killed */

/* For functions that run in a child that still shares the host's memory. They run on a stack that
 * the sanitizers have never heard of, and only make system calls: no allocation, no stdio, no lock.
 */
#define IN_SHARED_MEMORY __attribute__((no_sanitize("address", "undefined")))

#endif
