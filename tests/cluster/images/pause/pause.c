// The process that holds a pod's namespaces: waits for the end, and reaps what is left to it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  sigaction(SIGINT, &(struct sigaction){.sa_handler = end}, NULL);
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL);
  sigaction(SIGCHLD, &(struct sigaction){.sa_handler = reap, .sa_flags = SA_NOCLDSTOP}, NULL);
  for (;;) pause();
}
