/* worker.h: one worker process tree, from its start to its confirmed end.
 *
 * The life cycle is the table of state x event in worker.c; worker_io.c turns bytes into its
 * events. A worker tells what happens by events (event.h); EVENT_ENDED is always the last, and by
 * then nothing of it runs and its folder is gone or going.
 *
 * Ownership: reference counted. worker_start gives one reference to the caller (worker_unref); the
 * core keeps another until the end is confirmed and every handle is closed.
 * Errors: negative errno values. Threads: the loop's thread only.
 */
#ifndef BERTH_WORKER_H
#define BERTH_WORKER_H

#include "capture.h"
#include "core.h"
#include "frame.h"
#include "pipe.h"

enum worker_state {
  WORKER_STARTING,    /* executed; its ready frame is awaited */
  WORKER_IDLE,        /* no request in flight */
  WORKER_BUSY,        /* a request is in flight */
  WORKER_DRAINING,    /* its frames ended; its exit status is awaited for a moment, then the kill */
  WORKER_STOPPING,    /* asked to end by itself */
  WORKER_EMPTYING,    /* killed; the proof is awaited */
  WORKER_UNCONFIRMED, /* the proof did not come in time */
  WORKER_ENDED,       /* proven empty */
};

enum worker_loss_code {
  LOSS_NONE,
  LOSS_EXIT,      /* the worker's own process ended */
  LOSS_EOF,       /* it closed its frames */
  LOSS_VIOLATION, /* a breach of design section 5 */
  LOSS_GUARD,     /* its guard died */
  LOSS_MEMORY,    /* no memory for its frame */
};

enum { LOSS_SHOWN = 64 };

/* Why a worker was lost, with the first bytes of a breach. */
struct worker_loss {
  enum worker_loss_code code;
  const char *what; /* a static phrase: "the length is over the limit" */
  uint32_t size;    /* the length a header announced, if that was the breach */
  unsigned char shown[LOSS_SHOWN];
  size_t shown_size;
};

struct worker_options {
  bool pipes;  /* frames on 3 and 4 instead of 0 and 1 */
  bool ready;  /* a ready frame comes first */
  bool events; /* event frames are declared */
};

/* A payload on its way in. */
struct worker_incoming {
  unsigned char header[FRAME_HEADER];
  size_t header_size;
  struct event *event; /* allocated once the header was found good */
  size_t size;         /* payload bytes so far */
};

/* What the kernel has not taken yet. */
struct worker_outgoing {
  unsigned char *bytes;
  size_t size, sent;
};

enum worker_stream { STREAM_OUT, STREAM_ERR, STREAM_COUNT };

struct worker {
  TAILQ_ENTRY(worker) link;
  struct core *core;
  uint64_t id;
  unsigned refs, closing;
  enum worker_state state;
  struct worker_options options;
  struct containment containment;
  struct watch requests, frames, root, status;
  struct watch streams[STREAM_COUNT];
  struct capture captured[STREAM_COUNT]; /* since the last response */
  struct capture answer[STREAM_COUNT];   /* the last response's, until Lua takes it */
  struct capture late[STREAM_COUNT];     /* printed between a response and the next request */
  struct worker_incoming incoming;
  struct worker_outgoing outgoing;
  size_t taken;   /* bytes that the kernel took since the request began, replies included */
  bool call_open; /* a host call waits for its reply */
  bool answered;  /* a response was read just now */
  struct worker_loss loss;
  struct deadline step;
  int64_t kill_us, confirm_by_us, ended_us, grace_us, sweep_us;
  bool term_sent;
  bool own_exit; /* it had exited before we killed: its status, a KILL too, is its own */
  struct event lost, unconfirmed, ended;
  char tmpdir[TMPDIR_PATH_MAX];
};

/* Starts the program in `level`. Takes over `tmpdir`'s removal in every case. */
int worker_start(struct worker **out, struct core *core, enum containment_level level,
                 const struct worker_options *options, struct spawn_request *request,
                 const char *tmpdir, struct spawn_error *error);
void worker_unref(struct worker *worker);

/* Sends a request frame to an idle worker. The frame pipe is read once more before the first byte:
 * -ESTALE if that showed a loss (EVENT_LOST is queued, nothing was sent). What was printed since
 * the last response becomes late output. -ENOMEM: nothing was sent, the worker is as before. */
int worker_send(struct worker *worker, const void *bytes, size_t size);

/* Counts as late what an idle worker has printed so far: call before looking at `late`. */
void worker_sort_late(struct worker *worker);

/* Answers the open host call. -EINVAL if none is open. */
int worker_reply(struct worker *worker, enum frame_flags flags, const void *bytes, size_t size);

/* Sends an interrupt frame of 1 to 64 bytes to a busy worker; it has no answer of its own. -EBUSY
 * while the worker has not taken its request, -EINVAL if it is not busy. */
int worker_interrupt(struct worker *worker, const void *bytes, size_t size);

/* Kills at once. A race is settled first: if a whole response is already there, false:
 * EVENT_RESPONSE is queued and the worker lives. */
bool worker_kill(struct worker *worker);

/* Asks an idle worker to end: closes its stdin, TERM after close_us, KILL after term_us more. A
 * busy or starting one is killed. Returns as worker_kill does. */
bool worker_stop(struct worker *worker, int64_t close_us, int64_t term_us);

/* The worker's own process as the host sees it; 0 once it is gone. */
pid_t worker_pid(const struct worker *worker);

int worker_signal(struct worker *worker, int signal);

/* For core_destroy: kills without the loop, asks for the end, and gives the handles back. */
void worker_abandon(struct worker *worker);
bool worker_abandoned_end(struct worker *worker);
void worker_abandon_handles(struct worker *worker);

#endif
