/* kill_tracer: holds a process stopped, as a debugger does. Usage: kill_tracer PID
 * Prints "held" when it stands still, or why it can't be held, like "EPERM". Lets go at the end of
 * its input.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) {
  puts(text);
  fflush(stdout);
}

int main(int argc, char **argv) {
  pid_t pid = argc == 2 ? (pid_t)strtol(argv[1], NULL, 10) : 0;
  int status;
  char byte;
  if (pid <= 1) return 64;
  if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0) {
    say(strerrorname_np(errno));
    return 1;
  }
  if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0 || waitpid(pid, &status, __WALL) != pid) {
    say("lost");
    return 1;
  }
  say("held");
  while (read(STDIN_FILENO, &byte, 1) > 0)
    continue;
  (void)ptrace(PTRACE_DETACH, pid, NULL, NULL); /* fails if it was killed meanwhile */
  return 0;
}
