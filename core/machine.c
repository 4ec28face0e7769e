#include "machine.h"
#include <errno.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIGNAL_GROUP = 4 }; /* PIDFD_SIGNAL_PROCESS_GROUP; Debian 12's headers are older */

static int landlock_abi(void) {
  long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return abi > 0 ? (int)abi : 0;
}

static bool has_seccomp(void) {
  uint32_t action = SECCOMP_RET_ERRNO;
  return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

/* Without arguments it fails in any case: with EINVAL where it works. */
static bool has_clone3(void) {
  return syscall(SYS_clone3, NULL, 0) < 0 && errno != ENOSYS && errno != EPERM;
}

static bool has_group_signals(void) {
  int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (self < 0) return false;
  bool known = syscall(SYS_pidfd_send_signal, self, 0, NULL, SIGNAL_GROUP) == 0 || errno != EINVAL;
  close(self);
  return known;
}

void machine_look(struct machine *machine) {
  memset(machine, 0, sizeof(*machine));
  (void)uname(&machine->system);
  machine->user = geteuid();
  machine->landlock_abi = landlock_abi();
  machine->seccomp = has_seccomp();
  machine->clone3 = has_clone3();
  machine->group_signals = has_group_signals();
  (void)getrlimit(RLIMIT_NOFILE, &machine->open_files);
  (void)getrlimit(RLIMIT_NPROC, &machine->processes);
}
