# cython: language_level=3, boundscheck=False, wraparound=False
"""What the kernel gives: descriptors and child processes, and memory of files.

Descriptors and processes are owned from the call that makes them.

Ctrl-C raises between any two steps of Python, so that a number which a system call has returned can
be lost before Python has stored it. The calls here store it before they return to Python, and what
nothing refers to any more is closed or ended.

Nothing here imports NumPy, so that a worker can start its guard before the slow imports.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EPROTO, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

import os
from _thread import RLock


cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_BLOCK, SIG_SETMASK, SIGKILL
    int sigfillset(sigset_t *set)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)


cdef extern from "<sys/socket.h>" nogil:
    int SHUT_WR
    int shutdown(int end, int how)


cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int fork_process "fork" ()


cdef extern from "Python.h":
    void PyOS_BeforeFork()
    void PyOS_AfterFork_Parent()
    void PyOS_AfterFork_Child()


cdef extern from "os/descriptors.h" nogil:
    enum:
        RF_MAX_FDS

    struct rf_received:
        size_t size
        unsigned count
        int truncated
        int fds[RF_MAX_FDS]

    int rf_socket_pair(int *fds)
    int rf_send(int end, const void *packet, size_t size, const int *fds, unsigned count)
    int rf_receive(int end, void *packet, size_t size, rf_received *received)


cdef extern from "os/pages.h" nogil:
    bint rf_reserve_huge(int fd, uint64_t offset, uint64_t size)
    void *rf_map_private(int fd, uint64_t least, uint64_t *size)
    void rf_unmap(void *address, uint64_t size)


cdef extern from "os/wait.h" nogil:
    const bint rf_has_processes
    uint32_t rf_fork_generation()
    void rf_end_child(int pid)
    int rf_futex_error()
    int rf_guard_start(int parent, int lifeline)
    int rf_keep_heap(int trim, int mmap)


# Whether other processes can share memory with this one, and be watched: not in the portable layer.
HAS_PROCESSES = bool(rf_has_processes)

# Bytes. A longer message goes beside the packet, in a memfd: what a socket takes at once is not
# ours to say.
PACKET = 1 << 16

# Held while a descriptor is made or a process is forked, so that a forked child knows all
# descriptors that it has.
cdef object making = RLock()


def _renew():
    """In a forked child: take another lock, since a thread that is not there may hold the old one.

    Without the GIL that is also true of its critical section, which Python hands to a thread that
    waits, also while a fork stops that thread.
    """
    global making
    making = RLock()


os.register_at_fork(after_in_child=_renew)

# Of all open descriptors; each knows its neighbours. Changed in a critical section of `making`, in
# which nothing waits: a fork, which stops all threads of Python, finds the list whole.
cdef void *newest = NULL


@cython.final
cdef class Descriptor:
    """A file descriptor, closed when nothing refers to it any more.

    make(*arguments) returns its number.
    """

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
        with cython.critical_section(making):
            self.fd = fd
            self.older = newest
            if newest != NULL:
                (<Descriptor>newest).newer = <void *>self
            newest = <void *>self
        return 0

    cpdef int detach(self):
        """Return the number, and let the caller close it; -1 where this is closed already."""
        global newest
        cdef int fd
        with cython.critical_section(making):
            fd = self.fd
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
        self.close()

    cpdef void close(self):
        """Close it; once."""
        cdef int fd = self.detach()
        if fd >= 0:
            with nogil:
                close(fd)  # of shared memory: its pages may be many

    def fileno(self):
        """Return the number; -1 once it is closed."""
        return self.fd

    def shutdown(self):
        """Say no more through a channel, also where a forked process has a copy of this end.

        What the other end says is still heard.
        """
        shutdown(self.fd, SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


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
    cdef int error
    with making:
        error = rf_socket_pair(fds)
        if error:
            raise OSError(error, os.strerror(error))
        ours.own(fds[0])
        theirs.own(fds[1])
    return ours, theirs


def send(int end, const uint8_t[::1] packet not None, fds=()):
    """Send a packet with descriptors at once.

    OSError for a dead peer, BlockingIOError for one that does not read.
    """
    cdef int numbers[RF_MAX_FDS]
    cdef unsigned count = 0
    if len(fds) > RF_MAX_FDS:
        raise ValueError(f"{len(fds)} descriptors in one message, at most {RF_MAX_FDS}")
    for fd in fds:
        numbers[count] = fd
        count += 1
    cdef int error = rf_send(end, &packet[0], packet.shape[0], numbers, count)
    if error:
        raise OSError(error, os.strerror(error))


def receive(int end):
    """Return (packet, descriptors, truncated) of a message that has come.

    The packet is empty if the peer is gone.
    """
    cdef rf_received received
    cdef unsigned at
    cdef Descriptor owner
    # First: afterwards there may be no room for them.
    cdef list owners = [Descriptor() for _ in range(RF_MAX_FDS)]
    packet = bytearray(PACKET)
    cdef int error
    with making:
        error = rf_receive(end, <char *>packet, PACKET, &received)
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
            descriptor.close()


def fork(body):
    """Fork a process that runs body() and ends, and return its pid.

    The process never comes back to what this one is doing.

    No signal runs this process's handlers in there until the body lets them.

    Not by os.fork(): beside threads that warns, when the child is there already. As an error the
    warning would lose the pid.
    """
    cdef sigset_t every, before
    cdef int pid, error
    sigfillset(&every)
    with making:
        pthread_sigmask(SIG_BLOCK, &every, &before)
        try:
            PyOS_BeforeFork()
            pid = fork_process()
            error = errno
            if pid == 0:
                try:
                    PyOS_AfterFork_Child()
                    body()
                finally:
                    os._exit(1)
            PyOS_AfterFork_Parent()
        finally:
            pthread_sigmask(SIG_SETMASK, &before, NULL)
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def wait_for(int pid):
    """Wait for the end of a child, and end its group; return its exit code.

    None where it is no child, or others have waited for it.

    After the child is gone nothing here runs a signal's handler: an owner that is not told would
    end its id again.
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
    """A child process, ended when nothing refers to it any more.

    make(*arguments) returns its pid.
    """

    cdef readonly int pid
    cdef readonly Descriptor pidfd
    cdef uint32_t generation
    cdef bint is_over

    def __cinit__(self, make, *arguments, **options):
        self.generation = rf_fork_generation()
        self.pid = make(*arguments, **options)
        self.pidfd = Descriptor(os.pidfd_open, self.pid)  # no race: it has not been waited for

    def __dealloc__(self):
        cdef int pid = self.pid
        if pid > 0 and not self.is_over and self.generation == rf_fork_generation():
            with nogil:
                rf_end_child(pid)

    def wait(self):
        """Wait for its end, and for that of its group; return its exit code.

        None where others have waited for it.
        """
        if self.is_over:
            return None
        code = wait_for(self.pid)
        self.is_over = True
        return code


# ---- memory of files, in huge pages where the kernel has them ----

# So many bytes are set aside between two looks at signals: a tenth of a second, if all goes well.
cdef uint64_t STEP = 1 << 30
cdef size_t COMPARED = 1 << 22  # bytes that are compared between two such looks


def reserve_huge(int fd, uint64_t size):
    """Have huge pages set aside for a fresh memfd, as far as the kernel gives them.

    The rest is to be reserved yet.
    """
    cdef uint64_t at = 0
    cdef bint given = True
    while given and at < size:
        with nogil:
            given = rf_reserve_huge(fd, at, min(STEP, size - at))
        at += STEP
        PyErr_CheckSignals()


@cython.final
cdef class PrivateMapping:
    """All bytes of a file, writable, in a private mapping.

    What is written here no other process sees. Views keep the mapping; `fd` may be closed.

    The file has at least `least` bytes, or it is a ValueError. A page is copied when it is first
    written to.
    """

    cdef void *address
    cdef uint64_t size

    def __cinit__(self, int fd, uint64_t least):
        self.address = rf_map_private(fd, least, &self.size)
        if self.address != NULL:
            return
        if errno == EPROTO:
            raise ValueError(
                f"a file of shared memory has {self.size} bytes, expected at least {least or 1}: "
                "it is none that this version of ringfeed has made; do the workers import the same "
                "one?"
            )
        raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.address != NULL:
            rf_unmap(self.address, self.size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.size, 0, flags)


def is_same(const uint8_t[::1] left not None, const uint8_t[::1] right not None):
    """Return whether two buffers hold the same bytes; other threads run meanwhile."""
    cdef size_t at = 0, step, size = left.shape[0]
    cdef bint differs = left.shape[0] != right.shape[0]
    while at < size and not differs:
        step = min(COMPARED, size - at)
        with nogil:
            differs = memcmp(&left[at], &right[at], step) != 0
        at += step
        PyErr_CheckSignals()
    return not differs


# ---- a worker process ----

def futex_error():
    """Return 0, or the errno with which the kernel refuses the C library's own locks."""
    return rf_futex_error()


def start_guard(int parent, int lifeline):
    """SIGKILL this process's group when `parent` (a pidfd) or the peer of `lifeline` ends."""
    cdef int error = rf_guard_start(parent, lifeline)
    if error:
        raise OSError(error, os.strerror(error))


def keep_heap(int trim, int mmap):
    """Make malloc keep freed memory, and return whether it does.

    It keeps `trim` bytes at most, and blocks up to `mmap` bytes.
    """
    return rf_keep_heap(trim, mmap) == 0
