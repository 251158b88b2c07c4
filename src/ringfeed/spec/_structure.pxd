"""The members of `Structure`."""

from ringfeed.spec._rows cimport Containers


cdef class Structure(Containers):
    cdef Py_ssize_t count  # of leaves
    cdef int kind
    cdef tuple keys             # of a dict
    cdef object tree            # the Arrays of a NamedTuple
    cdef object known           # the class that the last NamedTuple was of
    cdef list children          # a Structure each; None for a leaf
    cdef Py_ssize_t length      # of the children

    cdef Py_ssize_t take(self, value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_dict(self, dict value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_other(self, value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_fields(self, value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_list(self, list value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_tuple(self, value, tuple leaves, Py_ssize_t first) except -2
    cdef Py_ssize_t take_child(self, Py_ssize_t number, value, tuple leaves, Py_ssize_t first) except -2
    cdef bint is_alike(self, value) except -1
