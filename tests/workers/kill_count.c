/* kill_count: answers each request with how many it has had: quick to start and to end. */
#include "kill_frames.h"
#include <stdio.h>

int main(void) {
  char request[64], answer[32];
  for (int count = 1;; count++) {
    frames_receive(request, sizeof request);
    (void)snprintf(answer, sizeof answer, "%d", count);
    frames_send(FRAMES_RESPONSE, answer);
  }
}
