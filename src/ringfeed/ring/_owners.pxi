# Included by _ring.pyx: descriptors and child processes, owned from the call that makes them.
#
# Ctrl-C raises between any two steps of Python, so that a number which a system call has returned can be lost before
# Python has stored it. The calls here store it before they return to Python, and what nothing refers to any more is
# closed or ended.

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_BLOCK, SIG_SETMASK, SIGKILL
    int sigfillset(sigset_t *set)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)

cdef extern from "<sys/socket.h>" nogil:
    int AF_UNIX, SOCK_SEQPACKET, SOCK_CLOEXEC
    int SHUT_RDWR
    int socketpair(int domain, int type, int protocol, int *fds)
    int shutdown(int end, int how)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

PACKET = 1 << 16  # bytes; a longer message goes beside it, in a memfd: what a socket takes at once is not ours to say

# Held while a descriptor is made or a process is forked, so that a forked child knows all descriptors that it has.
cdef object making = RLock()
os.register_at_fork(after_in_child=making._at_fork_reinit)

cdef void *newest = NULL  # of all open descriptors; each knows its neighbours. Changed under the GIL.


@cython.final
cdef class Descriptor:
    """A file descriptor: make(*arguments) returns its number, and it is closed when nothing refers to it any more."""

    cdef int fd
    cdef void *newer
    cdef void *older

    def __cinit__(self, make=None, *arguments):
        self.fd = -1
        if make is not None:
            with making:
                self.own(make(*arguments))

    cdef int own(self, int fd) except -1:
        global newest
        self.fd = fd
        self.older = newest
        if newest != NULL:
            (<Descriptor>newest).newer = <void *>self
        newest = <void *>self
        return 0

    cdef int forget(self):
        """Return the number, which is the caller's now; -1 where this is closed already."""
        global newest
        cdef int fd = self.fd
        if fd < 0:
            return fd
        self.fd = -1
        if self.newer != NULL:
            (<Descriptor>self.newer).older = self.older
        else:
            newest = self.older
        if self.older != NULL:
            (<Descriptor>self.older).newer = self.newer
        self.newer = self.older = NULL
        return fd

    def __dealloc__(self):
        self.close_now()

    cdef void close_now(self):
        cdef int fd = self.forget()
        if fd >= 0:
            with nogil:
                close(fd)  # of shared memory: its pages may be many

    def fileno(self):
        """Return the number; -1 once it is closed."""
        return self.fd

    def close(self):
        """Close it; once."""
        self.close_now()

    def shutdown(self):
        """End a channel, also where a forked process holds a copy of this end."""
        shutdown(self.fd, SHUT_RDWR)

    def detach(self):
        """Return the number, and let the caller close it."""
        return self.forget()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close_now()


def pipe():
    """Return the two ends of a new pipe: (reader, writer)."""
    cdef Descriptor reader = Descriptor(), writer = Descriptor()
    with making:
        ends = os.pipe()
        reader.own(ends[0])
        writer.own(ends[1])
    return reader, writer


def socket_pair():
    """Return two ends of a new channel, which keeps messages apart."""
    cdef Descriptor ours = Descriptor(), theirs = Descriptor()
    cdef int fds[2]
    if socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds):  # with the GIL, as no fork may come before `own`
        raise OSError(errno, os.strerror(errno))
    ours.own(fds[0])
    theirs.own(fds[1])
    return ours, theirs


def send(int end, const uint8_t[::1] packet not None, fds=()):
    """Send a packet with descriptors at once; OSError for a dead peer, BlockingIOError for one that does not read."""
    cdef int numbers[c.RF_MAX_FDS]
    cdef unsigned count = 0
    if len(fds) > c.RF_MAX_FDS:
        raise ValueError(f"{len(fds)} descriptors in one message, at most {c.RF_MAX_FDS}")
    for fd in fds:
        numbers[count] = fd
        count += 1
    cdef int error = c.rf_send(end, &packet[0], packet.shape[0], numbers, count)
    if error:
        raise OSError(error, os.strerror(error))


def receive(int end):
    """Return (packet, descriptors, truncated) of a message that has come; the packet is empty if the peer is gone."""
    cdef c.rf_received received
    cdef unsigned at
    cdef Descriptor owner
    cdef list owners = [Descriptor() for _ in range(c.RF_MAX_FDS)]  # first: there is no room for them afterwards, maybe
    packet = bytearray(PACKET)
    cdef int error = c.rf_receive(end, <char *>packet, PACKET, &received)  # with the GIL, as above
    if error:
        raise OSError(error, os.strerror(error))
    for at in range(received.count):
        owner = owners[at]
        owner.own(received.fds[at])
    return bytes(packet[:received.size]), owners[:received.count], bool(received.truncated)


def close_others(*kept):
    """In a forked child: close all descriptors of this module but those."""
    cdef void *at = newest
    cdef Descriptor descriptor
    while at != NULL:
        descriptor = <Descriptor>at
        at = descriptor.older
        if descriptor not in kept:
            descriptor.close_now()


def fork(body):
    """Fork a process that runs body() and ends: it never comes back to what this one is doing. Returns its pid.

    No signal runs this process's handlers in there until the body lets them.
    """
    cdef sigset_t every, before
    sigfillset(&every)
    with making:
        pthread_sigmask(SIG_BLOCK, &every, &before)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    body()
                finally:
                    os._exit(1)
        finally:
            pthread_sigmask(SIG_SETMASK, &before, NULL)
    return pid


def wait_for(int pid):
    """Wait for the end of a child, and end its group; returns its exit code, None where it is none, or others did so.

    After the child is gone nothing here runs a signal's handler: an owner that is not told would end its id again.
    """
    try:
        # Its group before itself, whose id could then be another's.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, SIGKILL)
    except (ChildProcessError, ProcessLookupError):
        pass
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


@cython.final
cdef class Child:
    """A child process: make(*arguments) returns its pid. It is ended when nothing refers to it any more."""

    cdef readonly int pid
    cdef readonly Descriptor pidfd
    cdef uint32_t generation
    cdef bint is_over

    def __cinit__(self, make, *arguments, **options):
        self.generation = c.rf_fork_generation()
        self.pid = make(*arguments, **options)
        self.pidfd = Descriptor(os.pidfd_open, self.pid)  # no race: it has not been waited for

    def __dealloc__(self):
        cdef int pid = self.pid
        if pid > 0 and not self.is_over and self.generation == c.rf_fork_generation():
            with nogil:
                c.rf_end_child(pid)

    def wait(self):
        """Wait for its end, and for that of its group; returns its exit code, None where others have waited for it."""
        if self.is_over:
            return None
        code = wait_for(self.pid)
        self.is_over = True
        return code
