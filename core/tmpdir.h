/* tmpdir.h: the private folders of workers, and their certain removal.
 *
 * One *root* per core: <base>/berth-<uid>-<boot id, 8 hex>-<pid>-<start time>, 0700, held by a
 * flock on its own descriptor for as long as the host lives. Every worker's folder is a 0700 folder
 * in it.
 *
 * Removal treats the content as hostile: no link is followed, no depth is too deep, modes are no
 * obstacle to the owner.
 * Ownership: paths are written to the caller's buffers. Errors: negative errno values.
 * Threads: tmpdir_remove may run on any thread; the rest on the loop's.
 */
#ifndef BERTH_TMPDIR_H
#define BERTH_TMPDIR_H

#include <stddef.h>
#include <stdint.h>

enum { TMPDIR_PATH_MAX = 512 };

struct tmpdir_root {
  int fd;                     /* the root folder, flocked */
  uint64_t next;              /* number of the next folder */
  char path[TMPDIR_PATH_MAX]; /* absolute */
};

/* Makes the root under `base` (absolute, exists, not inside a link another user owns) after
 * sweeping stale roots of this uid there: those whose host (boot id, pid, start time) is not alive
 * and whose lock is free. `swept` gets how many were removed. */
int tmpdir_root_open(struct tmpdir_root *root, const char *base, unsigned *swept);

/* Makes one 0700 folder named <prefix>-<number> and writes its absolute path. */
int tmpdir_make(struct tmpdir_root *root, const char *prefix, char path[TMPDIR_PATH_MAX]);

/* Removes the tree at `path`. `budget` bounds the number of directory entries removed by this call;
 * 0 means no bound. Returns 1 when it is gone, 0 when the budget was spent first (call again), or a
 * negative errno when something cannot be removed. */
int tmpdir_remove(const char *path, size_t budget);

/* Removes the root (with all that is left in it) and releases the lock. */
void tmpdir_root_close(struct tmpdir_root *root);

#endif
