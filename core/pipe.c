#include "pipe.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { FIRST_FREE_FD = 10 };

static int raise_fd(int fd) {
  if (fd >= FIRST_FREE_FD) return fd;
  int raised = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
  int err = errno;
  close(fd);
  errno = err;
  return raised;
}

int pipe_open(struct pipe_ends *ends, enum pipe_direction direction) {
  int fds[2];
  *ends = (struct pipe_ends){-1, -1};
  if (pipe2(fds, O_CLOEXEC)) return -errno;
  int read_end = raise_fd(fds[0]);
  int write_end = raise_fd(fds[1]);
  bool to_worker = direction == PIPE_TO_WORKER;
  *ends = (struct pipe_ends){.host = to_worker ? write_end : read_end,
                             .worker = to_worker ? read_end : write_end};
  if (read_end >= 0 && write_end >= 0 && fcntl(ends->host, F_SETFL, O_NONBLOCK) == 0) return 0;
  int err = -errno;
  pipe_close(ends);
  return err;
}

int pipe_open_null(struct pipe_ends *ends) {
  *ends = (struct pipe_ends){-1, -1};
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) fd = raise_fd(fd);
  if (fd < 0) return -errno;
  ends->worker = fd;
  return 0;
}

void pipe_close(struct pipe_ends *ends) {
  if (ends->host >= 0) close(ends->host);
  if (ends->worker >= 0) close(ends->worker);
  *ends = (struct pipe_ends){-1, -1};
}

int watch_open(struct watch *watch, uv_loop_t *loop, int fd, void *data) {
  watch->fd = fd;
  int err = uv_poll_init(loop, &watch->poll, fd);
  if (err) {
    close(fd);
    watch->fd = -1;
    return err;
  }
  watch->open = true;
  watch->poll.data = data;
  return 0;
}

int watch_borrow(struct watch *watch, uv_loop_t *loop, int fd, void *data) {
  int err = uv_poll_init(loop, &watch->poll, fd);
  if (err) return err;
  watch->fd = fd;
  watch->open = watch->borrowed = true;
  watch->poll.data = data;
  return 0;
}

int watch_start(struct watch *watch, int events, uv_poll_cb on_ready) {
  return uv_poll_start(&watch->poll, events, on_ready);
}

void watch_stop(struct watch *watch) {
  if (watch->open) uv_poll_stop(&watch->poll);
}

bool watch_close(struct watch *watch, uv_close_cb on_close) {
  bool open = watch->open;
  if (open) uv_close((uv_handle_t *)&watch->poll, on_close);
  if (watch->fd >= 0 && !watch->borrowed) close(watch->fd);
  watch->open = false;
  watch->fd = -1;
  return open;
}
