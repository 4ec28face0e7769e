/* worker_io.h: a worker's bytes. Reads frames and output, writes requests; what it finds it gives
 * to the life cycle as events (worker_fire). Private to worker*.c. */
#ifndef BERTH_WORKER_IO_H
#define BERTH_WORKER_IO_H

#include "worker.h"

/* What can happen to a worker; the columns of the table in worker.c. */
enum worker_event {
  WORKER_READY_FRAME,
  WORKER_RESPONSE_FRAME,
  WORKER_EVENT_FRAME,
  WORKER_CALL_FRAME,
  WORKER_BREACH,     /* `loss` says what */
  WORKER_FRAMES_END, /* EOF between frames */
  WORKER_EXITED,     /* its own process, or its guard */
  WORKER_STEP,       /* its step deadline passed */
  WORKER_KILL_ASKED,
  WORKER_STOP_ASKED,
  WORKER_EVENT_COUNT,
};

void worker_fire(struct worker *worker, enum worker_event event);

/* True if the state takes a frame of this kind at all. */
bool worker_takes(const struct worker *worker, enum worker_event frame);

/* Reads frames while the state wants them: at most what is in the pipe now. */
void worker_read_frames(struct worker *worker);

/* Before a request and behind a response, with one poll(2): reads what stdout and stderr hold (no
 * more than FIONREAD says), and the frame pipe if anything is there. */
void worker_look(struct worker *worker);

/* Reads what is left in stdout and stderr. */
void worker_drain(struct worker *worker);

int worker_write(struct worker *worker, enum frame_flags flags, const void *bytes, size_t size);

void worker_on_frames(uv_poll_t *poll, int status, int events);
void worker_on_stdout(uv_poll_t *poll, int status, int events);
void worker_on_stderr(uv_poll_t *poll, int status, int events);

#endif
