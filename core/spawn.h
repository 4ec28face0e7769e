/* spawn.h: start one program in its own session, without ever copying the host's memory.
 *
 * Roles: the *host* is this process. The *guard* (berth-guard) is the first child: it makes the
 * namespaces or becomes a subreaper, makes the *worker's* process from inside, then execs the small
 * static helper and lives exactly as long as the worker's containment. The worker's program is
 * executed after that, never before: what runs beside it shares nothing with the host any more.
 * At level group there is no guard.
 *
 * Ownership: a spawner is owned by the core and outlives every containment started with it.
 * Errors: negative errno values (the same numbers as libuv's codes), never raised.
 * Threads: call from the thread that runs the loop; PDEATHSIG is bound to that thread.
 */
#ifndef BERTH_SPAWN_H
#define BERTH_SPAWN_H

#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { SPAWN_MAX_FDS = 5 };

/* Where a start failed; said in failures as words. */
enum spawn_phase {
  SPAWN_OK,
  SPAWN_CLONE,      /* clone itself: namespaces refused, too many processes */
  SPAWN_NAMESPACES, /* uid map, mount propagation, /proc */
  SPAWN_GUARD,      /* the guard could not be executed */
  SPAWN_SETUP,      /* session, descriptors, limits */
  SPAWN_WORKSPACE,  /* chdir */
  SPAWN_EXEC,       /* the worker's program */
};

struct spawn_error {
  enum spawn_phase phase;
  int code; /* negative errno */
  const char
      *what; /* static words for it: "/proc can't be mounted"; NULL if nothing more is known */
};

/* What the worker is started with. Borrowed for the length of the call only. */
struct spawn_request {
  const char *const *argv; /* argv[0] is an absolute path */
  const char *const *envp;
  const char *cwd;
  int fds[SPAWN_MAX_FDS]; /* fds[i] becomes the worker's descriptor i; every one is >= 10, CLOEXEC
                           */
  size_t fd_count;        /* 3 (stdio) or 5 (pipes) */
};

struct spawner {
  int guard_fd;             /* berth-guard, opened once; -1: no guard, so only level group works */
  char *guard_path;         /* absolute if it exists, else as given; owned */
  int guard_error;          /* why guard_fd is -1: negative errno */
  char *stacks;             /* for the two children that share our memory */
  struct rlimit open_files; /* what the worker gets back: the host raises its own soft limit */
};

/* Opens the guard (its absence is no error here: see guard_fd), allocates the stacks, and raises
 * the soft limit on open files to the hard one. */
int spawner_init(struct spawner *spawner, const char *guard_path);
void spawner_finish(struct spawner *spawner);

/* What a level of containment asks of a start. */
struct spawn_plan {
  const char *guard_mode; /* NULL: no guard, the worker is our own child */
  int namespaces;         /* CLONE_NEW* flags for the guard; 0: it becomes a subreaper */
};

/* What a start gives. Descriptors are the caller's and CLOEXEC; -1 where there is none. */
struct spawned {
  pid_t root; /* guard, or worker without one */
  int root_pidfd;
  int worker_pidfd; /* without a guard the same number as root_pidfd */
  int lease_fd;
  int report_fd; /* non-blocking; see guard/guard.h */
};

/* Returns 0 when the worker's program has been executed, else error->code with nothing left behind:
 * no process, zombie or descriptor. */
int spawn_start(const struct spawner *spawner, const struct spawn_plan *plan,
                const struct spawn_request *request, struct spawned *spawned,
                struct spawn_error *error);

/* "clone", "namespaces", ... ; never NULL. */
const char *spawn_phase_name(enum spawn_phase phase);

#endif
