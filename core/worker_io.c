#include "worker_io.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ_AT_ONCE = FRAME_MAX + CORE_SCRATCH }; /* bytes of one turn, so that others get theirs */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* --- frames in --- */

static void breach(struct worker *worker, const char *what, const unsigned char *bytes,
                   size_t size) {
  struct worker_loss *loss = &worker->loss;
  if (loss->code == LOSS_NONE) {
    loss->code = LOSS_VIOLATION;
    loss->what = what;
    size_t header = worker->incoming.header_size;
    memcpy(loss->shown, worker->incoming.header, header);
    loss->shown_size = header + smaller(size, LOSS_SHOWN - header);
    memcpy(loss->shown + header, bytes, loss->shown_size - header);
  }
  worker_fire(worker, WORKER_BREACH);
}

static const char STILL_SENDING[] = "the host is still sending to it";

/* The event of the table that a frame with this header will be, or what is wrong with it. */
static const char *judge(const struct worker *worker, struct frame_header header,
                         enum worker_event *event) {
  bool starting = worker->state == WORKER_STARTING;
  switch (header.kind) {
    case FRAME_RESPONSE: *event = WORKER_RESPONSE_FRAME; break;
    case FRAME_CALL: *event = WORKER_CALL_FRAME; break;
    case FRAME_EVENT: *event = starting ? WORKER_READY_FRAME : WORKER_EVENT_FRAME; break;
    default: return "flags 01 mean nothing from a worker";
  }
  if (header.size == 0) return "the length is 0";
  if (header.size > FRAME_MAX) return "the length is over the limit";
  if (!worker_takes(worker, *event)) return "no such frame is expected now";
  if (*event == WORKER_EVENT_FRAME)
    return worker->options.events ? NULL : "its capability declares no events";
  if (worker->call_open) return "a host call is still open";
  if (*event == WORKER_CALL_FRAME && worker->outgoing.bytes) return STILL_SENDING;
  return NULL;
}

static enum event_kind kind_of(enum worker_event event) {
  switch (event) {
    case WORKER_READY_FRAME: return EVENT_READY;
    case WORKER_CALL_FRAME: return EVENT_CALL;
    case WORKER_EVENT_FRAME: return EVENT_PROGRESS;
    default: return EVENT_RESPONSE;
  }
}

/* The limit is checked here, before memory for the payload is taken. False: the worker is lost. */
static bool begin_payload(struct worker *worker, const unsigned char *rest, size_t rest_size) {
  struct frame_header header = frame_decode(worker->incoming.header);
  enum worker_event event;
  const char *wrong = judge(worker, header, &event);
  if (wrong) {
    worker->loss.size = header.size;
    breach(worker, wrong, rest, rest_size);
    return false;
  }
  worker->incoming.event = event_create(kind_of(event), worker, header.size);
  worker->incoming.size = 0;
  if (worker->incoming.event) return true;
  worker->loss = (struct worker_loss){
      .code = LOSS_MEMORY, .what = "the host has no memory for its frame", .size = header.size};
  worker_fire(worker, WORKER_BREACH);
  return false;
}

static void finish_payload(struct worker *worker) {
  static const enum worker_event fired[] = {
      [EVENT_READY] = WORKER_READY_FRAME,
      [EVENT_RESPONSE] = WORKER_RESPONSE_FRAME,
      [EVENT_PROGRESS] = WORKER_EVENT_FRAME,
      [EVENT_CALL] = WORKER_CALL_FRAME,
  };
  struct event *event = worker->incoming.event;
  /* A response may begin while the worker still reads (cat's does), but not be whole by then. */
  if (event->kind == EVENT_RESPONSE && worker->outgoing.bytes) {
    breach(worker, STILL_SENDING, event->bytes, event->size);
    return;
  }
  worker->incoming = (struct worker_incoming){0};
  events_add(&worker->core->events, event);
  worker_fire(worker, fired[event->kind]);
}

static bool wants_frames(const struct worker *worker) { return worker->state <= WORKER_BUSY; }

/* Takes bytes that were read; a byte that no request called for is a breach at once. */
static void take_bytes(struct worker *worker, const unsigned char *bytes, size_t size) {
  struct worker_incoming *incoming = &worker->incoming;
  while (size > 0 && wants_frames(worker)) {
    if (worker->state == WORKER_IDLE) {
      breach(worker, "it sent bytes that nothing asked for", bytes, size);
      return;
    }
    if (!incoming->event) {
      size_t part = smaller(size, FRAME_HEADER - incoming->header_size);
      memcpy(incoming->header + incoming->header_size, bytes, part);
      incoming->header_size += part;
      bytes += part, size -= part;
      if (incoming->header_size < FRAME_HEADER) return;
      if (!begin_payload(worker, bytes, size)) return;
    }
    size_t part = smaller(size, incoming->event->size - incoming->size);
    memcpy(incoming->event->bytes + incoming->size, bytes, part);
    incoming->size += part;
    bytes += part, size -= part;
    if (incoming->size == incoming->event->size) finish_payload(worker);
  }
}

/* A large payload is read straight to its place; everything else goes through the scratch bytes. */
static ssize_t read_some(struct worker *worker, size_t *wanted) {
  struct worker_incoming *incoming = &worker->incoming;
  size_t missing = incoming->event ? incoming->event->size - incoming->size : 0;
  bool direct = missing > CORE_SCRATCH;
  unsigned char *to = direct ? incoming->event->bytes + incoming->size : worker->core->scratch;
  *wanted = direct ? missing : CORE_SCRATCH;
  ssize_t got;
  do
    got = read(worker->frames.fd, to, *wanted);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return got;
  if (!direct) {
    take_bytes(worker, to, (size_t)got);
  } else {
    incoming->size += (size_t)got;
    if (incoming->size == incoming->event->size) finish_payload(worker);
  }
  return got;
}

static void end_of_frames(struct worker *worker) {
  watch_stop(&worker->frames);
  bool inside = worker->incoming.header_size > 0;
  if (inside) {
    const struct event *event = worker->incoming.event;
    breach(worker, "its frames ended inside a frame",
           event ? event->bytes : worker->incoming.header, worker->incoming.size);
  } else {
    worker_fire(worker, WORKER_FRAMES_END);
  }
}

/* All that was printed before a response is in the pipe when the response arrives. What is read
 * after this is no longer the evaluation's. */
static void finish_answer(struct worker *worker) {
  worker->answered = false;
  worker_look(worker);
  for (int i = 0; i < STREAM_COUNT; i++) {
    capture_reset(&worker->answer[i]);
    struct capture spare = worker->answer[i];
    worker->answer[i] = worker->captured[i];
    worker->captured[i] = spare;
  }
}

void worker_read_frames(struct worker *worker) {
  size_t budget = READ_AT_ONCE, wanted;
  while (wants_frames(worker) && budget > 0) {
    ssize_t got = read_some(worker, &wanted);
    if (worker->answered) finish_answer(worker);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      end_of_frames(worker);
      return;
    }
    if (got < 0 || (size_t)got < wanted) return; /* the pipe was emptied */
    budget -= smaller(budget, (size_t)got);
  }
}

void worker_on_frames(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  worker_read_frames(poll->data);
}

/* --- output --- */

/* True at EOF. */
static bool read_stream(struct worker *worker, enum worker_stream stream, size_t most) {
  ssize_t got;
  do
    got = read(worker->streams[stream].fd, worker->core->scratch, smaller(most, CORE_SCRATCH));
  while (got < 0 && errno == EINTR);
  if (got > 0) capture_add(&worker->captured[stream], worker->core->scratch, (size_t)got);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

static void on_stream(struct worker *worker, enum worker_stream stream) {
  if (read_stream(worker, stream, CORE_SCRATCH)) watch_stop(&worker->streams[stream]);
}

void worker_on_stdout(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  on_stream(poll->data, STREAM_OUT);
}

void worker_on_stderr(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  on_stream(poll->data, STREAM_ERR);
}

/* No more than FIONREAD says: reading until the pipe is empty would never end for `yes &`. */
static void drain_stream(struct worker *worker, enum worker_stream stream) {
  int fd = worker->streams[stream].fd, held = 0;
  if (fd < 0 || ioctl(fd, FIONREAD, &held)) return;
  for (size_t left = (size_t)held; left > 0; left -= smaller(left, CORE_SCRATCH))
    if (read_stream(worker, stream, left)) return;
}

void worker_drain(struct worker *worker) {
  for (int stream = 0; stream < STREAM_COUNT; stream++)
    drain_stream(worker, (enum worker_stream)stream);
}

void worker_look(struct worker *worker) {
  struct pollfd pipes[] = {
      {.fd = worker->streams[STREAM_OUT].fd, .events = POLLIN},
      {.fd = worker->streams[STREAM_ERR].fd, .events = POLLIN},
      {.fd = worker->frames.fd, .events = POLLIN},
  };
  if (poll(pipes, sizeof(pipes) / sizeof(*pipes), 0) <= 0) return;
  for (int stream = 0; stream < STREAM_COUNT; stream++)
    if (pipes[stream].revents & POLLIN) drain_stream(worker, (enum worker_stream)stream);
  if (pipes[STREAM_COUNT].revents) worker_read_frames(worker);
}

/* --- frames out --- */

/* How many bytes of header and payload the kernel took now; negative errno when it took none. */
static ssize_t write_now(int fd, const unsigned char *header, const void *bytes, size_t size) {
  struct iovec parts[] = {
      {.iov_base = (void *)(uintptr_t)header, .iov_len = FRAME_HEADER},
      {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size},
  };
  ssize_t taken;
  do
    taken = writev(fd, parts, 2);
  while (taken < 0 && errno == EINTR);
  return taken < 0 ? -errno : taken;
}

static void forget_outgoing(struct worker *worker) {
  free(worker->outgoing.bytes);
  worker->outgoing = (struct worker_outgoing){0};
}

/* The worker closed its end: nothing more can be sent. Its own end or its silence will be seen on
 * the other pipes; a request that it never took will not be answered, so it is lost now. */
static void request_refused(struct worker *worker) {
  forget_outgoing(worker);
  watch_stop(&worker->requests);
  if (worker->loss.code == LOSS_NONE)
    worker->loss = (struct worker_loss){.code = LOSS_EOF, .what = "it closed its request pipe"};
  worker_fire(worker, WORKER_FRAMES_END);
}

static void on_writable(uv_poll_t *poll, int status, int events) {
  (void)status, (void)events;
  struct worker *worker = poll->data;
  struct worker_outgoing *outgoing = &worker->outgoing;
  ssize_t taken =
      write(worker->requests.fd, outgoing->bytes + outgoing->sent, outgoing->size - outgoing->sent);
  if (taken < 0) {
    if (errno != EAGAIN && errno != EINTR) request_refused(worker);
    return;
  }
  outgoing->sent += (size_t)taken;
  worker->taken += (size_t)taken;
  if (outgoing->sent < outgoing->size) return;
  forget_outgoing(worker);
  watch_stop(&worker->requests);
}

static int keep_rest(struct worker *worker, const unsigned char *header, const void *bytes,
                     size_t size, size_t taken) {
  unsigned char *rest = malloc(FRAME_HEADER + size);
  if (!rest) return -ENOMEM;
  memcpy(rest, header, FRAME_HEADER);
  memcpy(rest + FRAME_HEADER, bytes, size);
  worker->outgoing =
      (struct worker_outgoing){.bytes = rest, .size = FRAME_HEADER + size, .sent = taken};
  return watch_start(&worker->requests, UV_WRITABLE, on_writable);
}

int worker_write(struct worker *worker, enum frame_flags flags, const void *bytes, size_t size) {
  unsigned char header[FRAME_HEADER];
  frame_encode(header, flags, (uint32_t)size);
  ssize_t taken = write_now(worker->requests.fd, header, bytes, size);
  if (taken < 0 && taken != -EAGAIN) {
    request_refused(worker);
    return 0;
  }
  size_t sent = taken > 0 ? (size_t)taken : 0;
  worker->taken += sent;
  if (sent == FRAME_HEADER + size) return 0;
  int err = keep_rest(worker, header, bytes, size, sent);
  if (err == 0 || sent == 0) return err;
  worker->loss = (struct worker_loss){.code = LOSS_MEMORY,
                                      .what = "the host has no memory for the rest of a frame"};
  worker_fire(worker, WORKER_BREACH); /* half a frame can't be taken back */
  return 0;
}
