/* core.h: everything that one Lua state's hosts share: the loop, the clock, the spawner, the
 * probes, the folder for temporary folders, the workers. There is no other state in this library.
 *
 * Ownership: core_create gives the core to the caller; core_destroy ends every worker first.
 * Errors: negative errno values. Threads: the thread that created it, always.
 *
 * Effects on the process: SIGPIPE is ignored if nobody handles it, and the soft limit on open files
 * is raised to the hard one. Workers get both back as they were.
 */
#ifndef BERTH_CORE_H
#define BERTH_CORE_H

#include "containment.h"
#include "deadline.h"
#include "event.h"
#include "tmpdir.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

enum { CORE_SCRATCH = 64 * 1024, CORE_WHY = 160 };

/* What trying a level showed. */
struct core_probe {
  bool tried;
  int code; /* 0: works here */
  char why[CORE_WHY];
};

TAILQ_HEAD(worker_list, worker);

struct core {
  uv_loop_t loop;
  uv_poll_t timer;
  uv_signal_t interrupt, orphans;
  struct deadlines deadlines;
  struct event_list events;
  struct event interrupted;
  struct worker_list workers;
  struct spawner spawner;
  struct tmpdir_root tmp; /* opened with the first folder */
  bool tmp_open, interrupt_open;
  unsigned swept; /* stale roots that opening `tmp` removed */
  struct core_probe probes[LEVEL_COUNT];
  struct core_timers *timers; /* Lua's deadlines */
  uint64_t last_worker_id;
  bool many_cores;        /* this process may run on more than one */
  bool sent;              /* a request left since the loop last slept: its answer may be near */
  unsigned spins_to_skip; /* for so many sends no answer is awaited awake */
  unsigned spin_misses;   /* in a row */
  unsigned char *scratch; /* CORE_SCRATCH bytes for any one read */
};

/* `guard_path`: where berth-guard is. */
int core_create(struct core **out, const char *guard_path);
void core_destroy(struct core *core); /* NULL-safe; kills, confirms within 5 s, gives all back */

int64_t core_now(const struct core *core);

/* One turn of the loop; with `block` it waits for something to happen. False: nothing is left that
 * could ever happen (no worker, no deadline, no removal). */
bool core_turn(struct core *core, bool block);

/* Whether the level works here: tried once, then remembered. */
const struct core_probe *core_probe(struct core *core, enum containment_level level);

/* Makes a private folder; see tmpdir.h. */
int core_make_tmpdir(struct core *core, const char *prefix, char path[TMPDIR_PATH_MAX]);

/* Removes a folder: small ones at once, large ones on another thread. core_destroy waits for all.
 */
void core_remove_tmpdir(struct core *core, const char *path);

/* Lua's deadlines: an id now, an EVENT_DEADLINE with it later. 0: no memory. Clearing one whose
 * event is still queued takes the event back. */
uint64_t core_set_deadline(struct core *core, int64_t at_us);
void core_clear_deadline(struct core *core, uint64_t id);

/* SIGINT becomes an EVENT_INTERRUPT, once; the second one has its default effect. */
int core_catch_interrupt(struct core *core);

#endif
