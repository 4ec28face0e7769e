/* pipe.h: the real pipes between host and worker, and what the loop watches of them.
 *
 * Real pipes, not libuv's (those are sockets: `> /dev/stdout` fails on them). The host's end is
 * non-blocking, the worker's end is blocking; they are two open file descriptions, so neither sees
 * the other's flag. Every descriptor is CLOEXEC and >= 10, so that a child may put any of them at
 * 0-4 without overwriting another (spawn.h).
 *
 * Ownership: the struct is the caller's; a watch must be closed before its memory goes, and its
 * memory stays until the close callback has run. Errors: negative errno values.
 */
#ifndef BERTH_PIPE_H
#define BERTH_PIPE_H

#include <stdbool.h>
#include <uv.h>

struct pipe_ends {
  int host, worker;
};

enum pipe_direction { PIPE_TO_WORKER, PIPE_FROM_WORKER };

int pipe_open(struct pipe_ends *ends, enum pipe_direction direction);
void pipe_close(struct pipe_ends *ends); /* both ends that are still >= 0 */

/* /dev/null for the worker's stdin, where frames travel elsewhere. */
int pipe_open_null(struct pipe_ends *ends);

/* A descriptor the loop watches. */
struct watch {
  uv_poll_t poll;
  int fd;        /* -1: none */
  bool open;     /* the handle exists in the loop */
  bool borrowed; /* the descriptor is somebody else's: it is not closed */
};

/* Gives `fd` to the watch (also when it fails: then the fd is closed). `data` is the handle's data.
 */
int watch_open(struct watch *watch, uv_loop_t *loop, int fd, void *data);

/* The same for a descriptor that stays its owner's, who closes it after the watch. */
int watch_borrow(struct watch *watch, uv_loop_t *loop, int fd, void *data);

int watch_start(struct watch *watch, int events, uv_poll_cb on_ready);
void watch_stop(struct watch *watch);

/* Ends the handle and closes a descriptor that was given. True if on_close will be called. */
bool watch_close(struct watch *watch, uv_close_cb on_close);

#endif
