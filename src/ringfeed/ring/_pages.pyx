# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Memory of files, in huge pages where the kernel has them: set aside by the writer, mapped by the reader.

Nothing here imports NumPy: a worker maps its dataset before it knows what is in it.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EPROTO, errno
from libc.stdint cimport uint64_t

from ringfeed.ring cimport _cring as c

import os

# So many bytes are set aside between two looks at signals: a tenth of a second, if all goes well.
cdef uint64_t STEP = 1 << 30


def reserve_huge(int fd, uint64_t size):
    """Have huge pages set aside for a fresh memfd, as far as the kernel gives them; the rest is to be reserved yet."""
    cdef uint64_t at = 0
    cdef bint given = True
    while given and at < size:
        with nogil:
            given = c.rf_reserve_huge(fd, at, min(STEP, size - at))
        at += STEP
        PyErr_CheckSignals()


@cython.final
cdef class PrivateMapping:
    """All bytes of a file, writable: what is written here no other process sees. Views keep it; `fd` may be closed.

    The file has at least `least` bytes, or it is a ValueError. A page is copied when it is first written to.
    """

    cdef void *address
    cdef uint64_t size

    def __cinit__(self, int fd, uint64_t least):
        self.address = c.rf_map_private(fd, least, &self.size)
        if self.address != NULL:
            return
        if errno == EPROTO:
            raise ValueError(f"a file of shared memory has {self.size} bytes, expected at least {least or 1}: it is "
                             "none that this version of ringfeed has made; do the workers import the same one?")
        raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.address != NULL:
            c.rf_unmap(self.address, self.size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.size, 0, flags)
