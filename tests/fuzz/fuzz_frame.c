/* Bytes of a hostile worker through the reader of worker_io.c, by a real pipe, in pieces of any
 * size, against a parser written once more from the words of design section 5: the same frames come
 * out, the same breach is found, and nothing behind it is read.
 *
 * The first byte of the input says how the worker stands, the second how its bytes are cut into
 * pieces; each other one is a word for a whole frame, or brings raw bytes (see compose). No process
 * is started: the worker's containment is made up, and already proven empty.
 */
#include "core.h"
#include "worker.h"
#include "worker_io.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SET_UP = 2, FRAMES_MAX = 64, STREAM_MAX = 32 * 1024, PAYLOAD_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition, const char *what) {
  if (condition) return;
  (void)fprintf(stderr, "fuzz_frame: %s\n", what);
  abort();
}

/* -- what the worker says ---------------------------------------------------------------------- */

static uint8_t stream[STREAM_MAX];

static void append(size_t *size, const uint8_t *bytes, size_t count) {
  size_t room = STREAM_MAX - *size;
  if (count > room) count = room;
  memcpy(stream + *size, bytes, count);
  *size += count;
}

/* A long payload is only begun: what comes then lies inside it. */
static void append_frame(size_t *size, unsigned flags, uint32_t length) {
  static uint8_t payload[PAYLOAD_MAX];
  const uint8_t header[] = {(uint8_t)(flags << 6 | length >> 24), (uint8_t)(length >> 16),
                            (uint8_t)(length >> 8), (uint8_t)length};
  for (size_t i = 0; i < PAYLOAD_MAX; i++)
    payload[i] = (uint8_t)(*size + i);
  append(size, header, sizeof header);
  append(size, payload, length < PAYLOAD_MAX ? length : 100);
}

/* Bits of a word below 128: two for the flags, five for the length. Above: 1 to 8 raw bytes. */
static size_t compose(const uint8_t *words, size_t count) {
  static const uint32_t lengths[32] = {
      0,   1,       2,       3,       4,    5,    7,       8,
      59,  60,      61,      63,      64,   65,   255,     256,
      257, 1000,    4091,    4092,    4095, 4096, 5000,    1,
      2,   1048575, 1048576, 1048577, 1,    0,    1 << 29, (1u << 30) - 1};
  size_t size = 0;
  while (count > 0) {
    uint8_t word = *words++;
    count--;
    if (word < 128) {
      append_frame(&size, word & 3, lengths[word >> 2]);
    } else {
      size_t raw = (word & 7) + 1u < count ? (word & 7) + 1u : count;
      append(&size, words, raw);
      words += raw, count -= raw;
    }
  }
  return size;
}

/* -- the parser written once more -------------------------------------------------------------- */

struct expected {
  size_t count;
  struct {
    enum event_kind kind;
    const uint8_t *bytes;
    size_t size;
  } frames[FRAMES_MAX];
  bool breach;  /* of any kind, an end inside a frame included */
  bool in_time; /* the breach is there before the end of the bytes */
};

struct stand {
  enum worker_state state;
  bool events, call_open, sending;
};

static struct stand stand_of(uint8_t byte) {
  static const enum worker_state states[] = {WORKER_STARTING, WORKER_IDLE, WORKER_BUSY,
                                             WORKER_BUSY};
  struct stand stand = {.state = states[byte & 3], .events = byte & 4};
  if (stand.state == WORKER_BUSY) {
    stand.call_open = byte & 8;
    stand.sending = byte & 16;
  }
  return stand;
}

/* Is a frame with this header a breach? */
static bool is_breach(const struct stand *stand, unsigned flags, uint32_t size) {
  if (flags == 1 || size == 0 || size > 1048576) return true;
  if (stand->state == WORKER_STARTING) return flags != 3;
  if (flags == 3) return !stand->events;
  return stand->call_open || (flags == 2 && stand->sending);
}

static void expect(struct expected *expected, struct stand stand, const uint8_t *bytes,
                   size_t size) {
  *expected = (struct expected){.count = 0};
  while (size > 0) {
    expected->breach = expected->in_time = true; /* unless this frame is whole and good */
    if (stand.state == WORKER_IDLE) return;
    expected->in_time = false;
    if (size < 4) return;
    unsigned flags = bytes[0] >> 6;
    uint32_t length =
        (bytes[0] & 63u) << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    expected->in_time = is_breach(&stand, flags, length);
    if (expected->in_time || size - 4 < length) return;
    expected->in_time = flags == 0 && stand.sending; /* it may begin, but not be whole */
    if (expected->in_time) return;
    expected->breach = false;
    bool starting = stand.state == WORKER_STARTING;
    static const enum event_kind kinds[] = {EVENT_RESPONSE, EVENT_RESPONSE, EVENT_CALL,
                                            EVENT_PROGRESS};
    expected->frames[expected->count].kind = starting ? EVENT_READY : kinds[flags];
    expected->frames[expected->count].bytes = bytes + 4;
    expected->frames[expected->count++].size = length;
    if (flags == 0 || starting) stand.state = WORKER_IDLE;
    if (flags == 2) stand.call_open = true;
    bytes += 4 + length, size -= 4 + length;
    if (expected->count == FRAMES_MAX) return;
  }
}

/* -- the reader -------------------------------------------------------------------------------- */

static struct core *core;

static struct worker *make_worker(const struct stand *stand, int frames) {
  struct worker *worker = calloc(1, sizeof *worker);
  demand(worker != NULL, "no memory");
  worker->core = core;
  worker->refs = 2; /* ours and the core's */
  worker->state = stand->state;
  worker->options.events = stand->events;
  worker->call_open = stand->call_open;
  if (stand->sending) worker->outgoing.bytes = malloc(1);
  worker->requests.fd = worker->root.fd = worker->status.fd = -1;
  worker->streams[STREAM_OUT].fd = worker->streams[STREAM_ERR].fd = -1;
  worker->frames.fd = frames;
  worker->containment = (struct containment){.end = CONTAINMENT_EMPTY,
                                             .root_pidfd = -1,
                                             .leader_pidfd = -1,
                                             .status_fd = -1,
                                             .lease_fd = -1,
                                             .leader_known = true,
                                             .leader_told = true,
                                             .root_reaped = true};
  worker->lost = (struct event){.kind = EVENT_LOST, .embedded = true, .worker = worker};
  worker->ended = (struct event){.kind = EVENT_ENDED, .embedded = true, .worker = worker};
  for (int i = 0; i < STREAM_COUNT; i++)
    worker->captured[i].limit = worker->answer[i].limit = worker->late[i].limit = 64;
  demand(deadline_attach(&core->deadlines, &worker->step) == 0, "no memory");
  TAILQ_INSERT_TAIL(&core->workers, worker, link);
  return worker;
}

/* Writes the bytes piece by piece; after each the reader has its turn. Then the pipe ends. */
static void feed(struct worker *worker, int to, const uint8_t *bytes, size_t size, uint8_t cut) {
  size_t step = cut ? cut : size + 1;
  while (size > 0 && worker->state <= WORKER_BUSY) {
    size_t piece = size < step ? size : step;
    demand(write(to, bytes, piece) == (ssize_t)piece, "the pipe is too small");
    worker_read_frames(worker);
    bytes += piece, size -= piece;
    if (cut & 1) step = step % 7 + 1;
  }
  close(to);
}

static void compare_frames(const struct worker *worker, const struct expected *expected) {
  const struct event *event = TAILQ_FIRST(&core->events);
  for (size_t i = 0; i < expected->count; i++, event = TAILQ_NEXT(event, link)) {
    demand(event && event->kind == expected->frames[i].kind, "another frame came");
    demand(event->worker == worker, "a frame of another worker");
    demand(event->size == expected->frames[i].size, "a frame of another size");
    demand(memcmp(event->bytes, expected->frames[i].bytes, event->size) == 0, "other bytes");
  }
  if (expected->count == FRAMES_MAX) return; /* more was not foreseen */
  demand(!event || event->kind == EVENT_LOST || event->kind == EVENT_ENDED, "a frame too many");
}

static void compare(const struct worker *worker, const struct expected *expected) {
  compare_frames(worker, expected);
  if (expected->count == FRAMES_MAX) return; /* what came then was not foreseen */
  bool lost = worker->loss.code != LOSS_NONE;
  demand(lost == (expected->breach && expected->in_time), "a breach was missed, or made up");
  if (lost) demand(worker->loss.code == LOSS_VIOLATION && worker->loss.what, "no violation");
  demand(worker->loss.shown_size <= LOSS_SHOWN, "too much is shown");
}

/* Reads the end of the pipe, as the loop would. */
static void compare_end(struct worker *worker, const struct expected *expected) {
  if (worker->state > WORKER_BUSY) return;
  worker_read_frames(worker);
  worker_read_frames(worker);
  demand(worker->state == WORKER_ENDED, "it outlived its pipe");
  if (expected->count == FRAMES_MAX) return;
  enum worker_loss_code wanted = expected->breach ? LOSS_VIOLATION : LOSS_EOF;
  demand(worker->loss.code == wanted, "the end of the pipe was taken for something else");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int ends[2];
  if (!core) demand(core_create(&core, "/nowhere/berth-guard") == 0, "no core");
  if (size < SET_UP) return 0;
  demand(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  const struct stand stand = stand_of(data[0]);
  static struct expected expected;
  size_t said = compose(data + SET_UP, size - SET_UP);
  expect(&expected, stand, stream, said);
  struct worker *worker = make_worker(&stand, ends[0]);
  feed(worker, ends[1], stream, said, data[1]);
  compare(worker, &expected);
  compare_end(worker, &expected);
  worker_unref(worker); /* takes its events along */
  demand(TAILQ_EMPTY(&core->events) && TAILQ_EMPTY(&core->workers), "something of it is left");
  return 0;
}
