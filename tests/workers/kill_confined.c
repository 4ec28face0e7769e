/* kill_confined: runs a program where new namespaces are refused with EPERM and clone3 does not
 * exist, as container runtimes have it by default. Usage: kill_confined COMMAND [ARG...]
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint32_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                   CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)

/* The low half of an argument comes first on the machines we know. */
static int confine(void) {
  struct sock_filter code[] = {
      LOAD(nr),
      IF_EQUAL(SYS_clone3, 5, 0),
      IF_EQUAL(SYS_unshare, 1, 0),
      IF_EQUAL(SYS_clone, 0, 4),
      LOAD(args[0]),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, namespaces, 0, 2),
      ANSWER(SECCOMP_RET_ERRNO | EPERM),
      ANSWER(SECCOMP_RET_ERRNO | ENOSYS),
      ANSWER(SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
  if (argc < 2 || confine() < 0) {
    perror("kill_confined");
    return 2;
  }
  execvp(argv[1], argv + 1);
  perror(argv[1]);
  return 127;
}
