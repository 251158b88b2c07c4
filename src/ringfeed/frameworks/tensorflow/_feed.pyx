# cython: language_level=3, boundscheck=False, wraparound=False
"""A feed, held for Python: C code takes batches there, and asks Python where it cannot."""

cimport cython
from cpython.exc cimport PyErr_SetInterrupt
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.string cimport strdup

from ringfeed.frameworks.tensorflow cimport _cfeed as f
from ringfeed.ring cimport _cring as c
from ringfeed.ring._ring cimport Lease, Ring, feed_calls

import signal
import sys
import threading

from ringfeed.errors import ClosedError

cdef extern from *:
    """
    #include <signal.h>
    #include <stdatomic.h>
    #include <time.h>

    #if PY_VERSION_HEX >= 0x030D0000
    #define ringfeed_is_ending() (!Py_IsInitialized() || Py_IsFinalizing())
    #else
    #define ringfeed_is_ending() (!Py_IsInitialized() || _Py_IsFinalizing())
    #endif

    static _Atomic int64_t ringfeed_heard_ns; /* when Ctrl-C has come last */
    static _Atomic uint32_t ringfeed_heard; /* times that it has come; written after that */
    static _Atomic uint32_t ringfeed_met;   /* of these, those that the main thread is past */
    static _Atomic uint32_t ringfeed_broken; /* the last for which a wait was broken off */
    /* Each is written again and again, with the same. */
    static _Atomic PyOS_sighandler_t ringfeed_python_hears;
    static _Atomic unsigned long ringfeed_main; /* thread */
    static int (*_Atomic ringfeed_meet)(void *heard);

    /* Within a signal: nothing that may wait. A thread without the GIL does not hold the lock of
    pending calls. */ static void ringfeed_hear(int number) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now); /* as rf_now_ns() */
        atomic_store(&ringfeed_heard_ns, now.tv_sec * INT64_C(1000000000) + now.tv_nsec);
        uint32_t heard = atomic_fetch_add(&ringfeed_heard, 1) + 1;
        if (PyThread_get_thread_ident() != ringfeed_main || PyGILState_Check() ||
            Py_AddPendingCall(ringfeed_meet, (void *)(uintptr_t)heard))
            atomic_store(&ringfeed_met, heard); /* it runs Python, which answers at once */
        ringfeed_python_hears(number);
    }

    /* Hear of Ctrl-C before Python does, unless another handler was set meanwhile. */
    static void ringfeed_listen(unsigned long main, int (*meet)(void *heard))
    {
        PyOS_sighandler_t now = PyOS_getsig(SIGINT);
        ringfeed_main = main;
        ringfeed_meet = meet;
        if (!ringfeed_python_hears)
            ringfeed_python_hears = now;
        if (now == ringfeed_python_hears)
            PyOS_setsig(SIGINT, ringfeed_hear);
    }
    """
    bint is_ending "ringfeed_is_ending" () nogil
    void listen "ringfeed_listen" (unsigned long main, int (*meet)(void *heard) except -1)
    int64_t heard_ns "ringfeed_heard_ns"
    uint32_t last_heard "ringfeed_heard", met "ringfeed_met", broken "ringfeed_broken"

cdef const f.rf_feed_calls *calls = <const f.rf_feed_calls *>feed_calls

# What the main thread may take to come to a signal, if it runs Python at all.
cdef int64_t PROMPT_NS = 50_000_000
# By the number of a feed, whose C part may outlive it: what it asks.
cdef object asked_of = {}


def calls_address():
    """Return where the table of the feed's functions lies, for libraries that call them."""
    return <uintptr_t>calls


def leave():
    """Let no more calls come from feeds, since the interpreter ends; return how many run Python."""
    return calls.leave()


@cython.final
cdef class Feed:
    """Where C code takes a loader's batches, and what it asks in Python for all else.

    It holds a weak reference to that object: the engine keeps the feed, and must not keep its
    loader.
    """

    cdef f.rf_feed *feed

    def __cinit__(self, list parts not None, uint32_t rows, asked):
        """Batches of at most `rows` rows.

        `parts`: for each leaf (offset, bytes a row, shape of a row, number of its dtype).

        `asked()` gives an object whose `begin()` returns the id of a new epoch, whose
        `take(epoch_id)` the lease and rows of its next batch, or None at its end, and whose
        `rest(step)` the newest id if it has batches left after its last step, or None; or it gives
        None, if that object is gone.
        """
        cdef f.rf_part *part
        self.feed = calls.make(&ASKS, rows, <uint32_t>len(parts))
        if self.feed == NULL:
            raise MemoryError
        asked_of[calls.number(self.feed)] = asked
        for number, (offset, row_size, shape, dtype) in enumerate(parts):
            if len(shape) >= <Py_ssize_t>c.RF_MAX_AXES:
                raise ValueError(
                    f"a leaf of {len(shape)} axes, at most {c.RF_MAX_AXES - 1} are supported"
                )
            part = calls.part(self.feed, number)
            part.offset = offset
            part.row_size = row_size
            part.axes = len(shape)
            part.type = dtype
            for axis, length in enumerate(shape):
                part.shape[axis] = length

    def __dealloc__(self):
        if self.feed != NULL:
            asked_of.pop(calls.number(self.feed), None)
            calls.end(self.feed)

    @property
    def number(self):
        """The number by which C code finds this feed."""
        return calls.number(self.feed)

    def attach(self, Ring ring not None, int64_t timeout_ns):
        """Have C code take the batches of this ring, each waited for up to `timeout_ns`."""
        with nogil:
            calls.attach(self.feed, ring.ring, timeout_ns)

    def detach(self):
        """Have C code take no more, and keep the ring no longer."""
        with nogil:
            calls.detach(self.feed)


cdef char *text_of(object error) noexcept:
    """Return the error as text, and pass Ctrl-C on to the main thread, which no text stops."""
    try:
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()
        return strdup(f"{type(error).__name__}: {error}".encode(errors="replace"))
    except BaseException:
        return strdup("RingfeedError: an error without a text")


cdef object asked_by(f.rf_feed *feed):
    """Return the object that a feed asks, or raise ClosedError where it is gone."""
    asked = asked_of.get(calls.number(feed))
    asked = None if asked is None else asked()
    if asked is None:
        raise ClosedError(
            "the loader of this dataset is gone; keep the dataset for as long as you iterate "
            "over it"
        )
    return asked


cdef int meet(void *heard) except -1:
    """Note that the main thread has come to a Ctrl-C, between two steps of Python.

    Python first does what signals ask for.

    There KeyboardInterrupt may come while TensorFlow makes the exception of the wait that was
    broken off for it. Of the two it makes a RuntimeError.
    """
    global met
    met = <uint32_t><uintptr_t>heard
    error = sys.exception()
    if broken == met and isinstance(error, RuntimeError) and "KeyboardInterrupt" in str(error):
        raise KeyboardInterrupt from None
    return 0


cdef bint raises_interrupt() noexcept with gil:
    """Whether Ctrl-C raises KeyboardInterrupt; a handler of the user's may raise nothing."""
    try:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    except BaseException:
        return False


cdef f.rf_reply ask_in_python(
    f.rf_feed *feed, f.rf_question question, int64_t *number, f.rf_handout *handout, char **error
) noexcept with gil:
    cdef Lease lease
    try:
        asked = asked_by(feed)
        if question == f.RF_BEGIN:
            if raises_interrupt():
                listen(threading.main_thread().ident, meet)
            number[0] = asked.begin()
        elif question == f.RF_LEFT:
            left = asked.rest(number[0])
            number[0] = f.RF_OVER if left is None else left
        else:
            taken = asked.take(number[0])
            if taken is None:
                return f.RF_REPLY_END
            lease, rows = taken
            calls.give(handout, lease.ring, lease.taken.slot, rows)
        return f.RF_REPLY_BATCH
    except BaseException as caught:
        error[0] = text_of(caught)
        return f.RF_REPLY_ERROR


cdef f.rf_reply ask(
    f.rf_feed *feed, f.rf_question question, int64_t *number, f.rf_handout *handout, char **error
) noexcept nogil:
    # A thread that asks for the GIL now would be ended by it, with TensorFlow's frames on its
    # stack.
    if is_ending():
        error[0] = strdup("ClosedError: the interpreter is about to end")
        return f.RF_REPLY_ERROR
    return ask_in_python(feed, question, number, handout, error)


cdef uint32_t ask_interrupted(uint32_t told, int64_t now_ns) noexcept nogil:
    # Python raises KeyboardInterrupt only between two steps of the main thread. If that waits in C
    # for a batch, it must have an error instead. Whether it does it shows by what else it would do
    # there, a pending call.
    global broken
    cdef uint32_t heard = last_heard
    if (
        heard == told or heard == met or is_ending()
        or now_ns - heard_ns < PROMPT_NS or not raises_interrupt()
    ):
        return told
    broken = heard
    return heard


cdef f.rf_callbacks ASKS
ASKS.ask = ask
ASKS.interrupted = ask_interrupted
