/* The header of design section 5, against its own words: bits 31 and 30 are flags, the rest is the
 * payload's length, big-endian. */
#include "check.h"
#include "frame.h"

static const uint32_t sizes[] = {0,
                                 1,
                                 255,
                                 256,
                                 65535,
                                 65536,
                                 0x00ffffff,
                                 FRAME_MAX - 1,
                                 FRAME_MAX,
                                 FRAME_MAX + 1,
                                 1 << 29,
                                 FRAME_REPLY_MAX,
                                 (1u << 30) - 1};

TEST(decodes_every_kind_with_every_size) {
  static const enum frame_kind kinds[] = {FRAME_RESPONSE, FRAME_UNDEFINED, FRAME_CALL, FRAME_EVENT};
  for (uint32_t flags = 0; flags < 4; flags++) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      unsigned char top = (unsigned char)(flags << 6 | sizes[i] >> 24);
      const unsigned char bytes[FRAME_HEADER] = {top, (unsigned char)(sizes[i] >> 16),
                                                 (unsigned char)(sizes[i] >> 8),
                                                 (unsigned char)sizes[i]};
      struct frame_header header = frame_decode(bytes);
      CHECK_INT(kinds[flags], header.kind);
      CHECK_INT(sizes[i], header.size);
    }
  }
}

TEST(encodes_what_the_host_sends) {
  static const struct {
    enum frame_flags flags;
    uint32_t size;
    unsigned char bytes[FRAME_HEADER];
  } rows[] = {
      {FRAME_REQUEST, 1, {0x00, 0x00, 0x00, 0x01}},
      {FRAME_REQUEST, FRAME_MAX, {0x00, 0x10, 0x00, 0x00}},
      {FRAME_INTERRUPT, 64, {0x40, 0x00, 0x00, 0x40}},
      {FRAME_REPLY, 0x01020304, {0x81, 0x02, 0x03, 0x04}},
      {FRAME_REPLY, FRAME_REPLY_MAX, {0x84, 0x00, 0x00, 0x00}},
      {FRAME_ERROR_REPLY, 0x00fffefd, {0xc0, 0xff, 0xfe, 0xfd}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    unsigned char bytes[FRAME_HEADER] = {0};
    frame_encode(bytes, rows[i].flags, rows[i].size);
    CHECK_BYTES(rows[i].bytes, bytes, FRAME_HEADER);
  }
}

/* No size can change the flags, not even one that has no room. */
TEST(keeps_flags_and_size_apart) {
  for (int bit = 0; bit < 32; bit++) {
    unsigned char bytes[FRAME_HEADER];
    for (uint32_t flags = 0; flags < 4; flags++) {
      frame_encode(bytes, (enum frame_flags)flags, UINT32_C(1) << bit);
      struct frame_header header = frame_decode(bytes);
      CHECK_INT(flags, (uint32_t)header.kind);
      CHECK_INT(bit < 30 ? UINT32_C(1) << bit : 0, header.size);
    }
  }
}

RUN_TESTS()
