/* kill_reaper: runs a program, kills it when it asks for that, and tells whether anything is left.
 * Usage: kill_reaper COMMAND [ARG...]
 *
 * Every orphan below COMMAND becomes our child (we are a subreaper), so when the kernel says that
 * we have no child, nothing that COMMAND ever started lives. COMMAND's output is passed on. At a
 * line "KILL US" it is sent SIGKILL, US microseconds later; a line "CAP MS" says how long what it
 * leaves may take to go (15 s). Its input is a pipe that stays empty.
 * Prints at the end "reaper: status N, gone in N us", or "reaper: status N, left: NAME NAME...";
 * what is left after the cap is killed here, and the exit status is then 1. A status over 128 is a
 * signal, as in a shell.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t program;
static volatile sig_atomic_t program_status = -1;

/* False when there is no child at all. */
static bool reap(void) {
  for (;;) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == 0) return true;
    if (pid < 0) return false;
    if (pid == program) {
      program_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
}

/* While the program still runs, its orphans must not pile up as zombies. */
static void on_child(int number) {
  (void)number;
  int error = errno;
  (void)reap();
  errno = error;
}

/* Never by a number that is free again: nothing may reap between the look and the kill. */
static void kill_program(void) {
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &before);
  if (program_status < 0) kill(program, SIGKILL);
  sigprocmask(SIG_SETMASK, &before, NULL);
}

/* We are to end: then the program is too, and we still tell what is left. */
static void on_term(int number) {
  (void)number;
  kill_program();
}

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void start(char **argv) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0) exit(2);
  program = fork();
  if (program == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execvp(argv[0], argv);
    _exit(127);
  }
  if (program < 0) exit(2);
  close(in[0]); /* the other end stays open as long as we live */
  close(out[1]);
  if (dup2(out[0], STDIN_FILENO) < 0) exit(2);
}

static void kill_after(long us) {
  int64_t until = now_us() + us;
  while (now_us() < until)
    continue;
  kill_program();
}

/* Until the program closes its output, which at the latest its end does. Returns the cap. */
static long follow(void) {
  char *line = NULL;
  size_t capacity = 0;
  long us, cap_ms = 15000;
  while (getline(&line, &capacity, stdin) > 0) {
    if (sscanf(line, "KILL %ld", &us) == 1)
      kill_after(us);
    else if (sscanf(line, "CAP %ld", &cap_ms) != 1)
      fputs(line, stdout);
  }
  free(line);
  return cap_ms;
}

/* The names of our children; each is killed on the way. */
static void end_the_rest(void) {
  char path[64];
  int pid;
  (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  FILE *children = fopen(path, "re");
  while (children && fscanf(children, "%d", &pid) == 1) {
    char name[64] = "?\n";
    (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *comm = fopen(path, "re");
    if (comm && !fgets(name, sizeof name, comm)) name[0] = '\0';
    if (comm) fclose(comm);
    name[strcspn(name, "\n")] = '\0';
    printf(" %s", name);
    kill(pid, SIGKILL);
  }
  if (children) fclose(children);
}

static bool await_none(int64_t until) {
  const struct timespec tick = {.tv_nsec = 10000000};
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, NULL);
  while (reap()) {
    if (now_us() > until) return false;
    (void)sigtimedwait(&child, NULL, &tick);
  }
  return true;
}

int main(int argc, char **argv) {
  const struct sigaction child = {.sa_handler = on_child, .sa_flags = SA_RESTART};
  const struct sigaction term = {.sa_handler = on_term, .sa_flags = SA_RESTART};
  if (argc < 2 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  start(argv + 1);
  sigaction(SIGCHLD, &child, NULL);
  sigaction(SIGTERM, &term, NULL);
  long cap_ms = follow();
  int64_t began = now_us();
  if (await_none(began + cap_ms * 1000)) {
    printf("reaper: status %d, gone in %lld us\n", (int)program_status,
           (long long)(now_us() - began));
    return 0;
  }
  printf("reaper: status %d, left:", (int)program_status);
  do {
    end_the_rest();
  } while (!await_none(now_us() + 100000));
  printf("\n");
  return 1;
}
