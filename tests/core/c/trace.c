#define _GNU_SOURCE
#include "trace.h"

#include "os/wait.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test that takes less tries every instruction; then fewer and fewer. */
#define QUICK_NS 2000000000
#define THIN_NS 300000000 /* half as many each time */

pid_t trace_start(int (*body)(void *argument), void *argument)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        kill(getpid(), SIGSTOP);
        _exit(body(argument));
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
        abort();
    return pid;
}

/* Each step is two switches between two processes, which take half the time if both are
 * on one processor. */
static void stay_on_one_processor(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

bool trace_is_allowed(void)
{
    int status = 0;
    stay_on_one_processor();
    pid_t pid = fork();
    if (pid == 0)
        _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

bool trace_step(pid_t pid)
{
    int status = 0;
    return ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid &&
           WIFSTOPPED(status);
}

int trace_finish(pid_t pid)
{
    int status = -1;
    ptrace(PTRACE_DETACH, pid, NULL, NULL);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void trace_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

uint32_t trace_next(uint32_t steps, int64_t began_ns)
{
    int64_t late_ns = rf_now_ns() - began_ns - QUICK_NS;
    return steps +
           (late_ns < 0 ? 1 : UINT32_C(2) << (late_ns / THIN_NS > 8 ? 8 : late_ns / THIN_NS));
}
