#include "frame.h"

enum { SIZE_BITS = 30, SIZE_MASK = (1 << SIZE_BITS) - 1 };

struct frame_header frame_decode(const unsigned char bytes[FRAME_HEADER]) {
  uint32_t word = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
                  (uint32_t)bytes[3];
  return (struct frame_header){
      .kind = (enum frame_kind)(word >> SIZE_BITS),
      .size = word & SIZE_MASK,
  };
}

void frame_encode(unsigned char bytes[FRAME_HEADER], enum frame_flags flags, uint32_t size) {
  uint32_t word = (uint32_t)flags << SIZE_BITS | (size & SIZE_MASK);
  bytes[0] = (unsigned char)(word >> 24);
  bytes[1] = (unsigned char)(word >> 16);
  bytes[2] = (unsigned char)(word >> 8);
  bytes[3] = (unsigned char)word;
}
