#include "orphans.h"
#include "worker.h"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_ours(const struct core *core, pid_t pid) {
  const struct worker *worker;
  TAILQ_FOREACH (worker, &core->workers, link)
    if (worker->containment.pid == pid) return true;
  return false;
}

/* The list is asked instead of waitid(P_ALL): that would show one of ours again and again, and hide
 * the orphans behind it. */
static void on_child(uv_signal_t *handle, int signal) {
  (void)signal;
  FILE *children = fopen("/proc/self/task/1/children", "re");
  if (!children) return;
  int pid;
  while (fscanf(children, "%d", &pid) == 1)
    if (!is_ours(handle->data, pid)) waitpid(pid, NULL, WNOHANG);
  fclose(children);
}

int core_reap_orphans(struct core *core) {
  if (getpid() != 1 || core->orphans.data) return 0;
  int err = uv_signal_init(&core->loop, &core->orphans);
  if (err) return err;
  core->orphans.data = core;
  return uv_signal_start(&core->orphans, on_child, SIGCHLD);
}
