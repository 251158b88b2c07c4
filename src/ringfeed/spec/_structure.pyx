# cython: language_level=3, boundscheck=False, wraparound=False
"""The leaves of samples whose nested containers are just those of a spec; `Spec` looks at all others, and refuses."""

cimport cython
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItemWithError, PyDict_Size
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM

from ringfeed.spec._rows cimport Containers

from collections.abc import Mapping

from ringfeed.spec.array import shown
from ringfeed.spec.values import plain


cdef enum Kind:
    TUPLE
    NAMED
    LIST
    DICT
    NONE


cdef Kind kind_of(node):
    """Return the kind of a node of `Spec.structure`."""
    if node[0] == "tuple":
        return TUPLE if node[1] is None else NAMED
    return {"list": LIST, "dict": DICT, "none": NONE}[node[0]]


cdef list children_of(tree):
    return list(tree.values()) if isinstance(tree, dict) else list(tree)


@cython.final
cdef class Structure(Containers):
    """One container of a sample, and the containers in it.

    `take` returns where the next leaf goes, or -1 where a container is not certainly the spec's.
    """

    def __cinit__(self, spec, node=None, tree=None):
        node, tree = (spec.structure, spec.tree) if node is None else (node, tree)
        self.kind = kind_of(node)
        self.tree = tree if self.kind == NAMED else None
        if self.kind == NONE:
            return
        self.keys = tuple(node[1]) if self.kind == DICT else None
        below = zip(node[len(node) - 1], children_of(tree))
        self.children = [None if child[0] == "leaf" else Structure(spec, child, inner) for child, inner in below]
        self.length = len(self.children)
        self.count = sum([1 if child is None else (<Structure>child).count for child in self.children])

    cdef tuple leaves_of(self, sample):
        """Return the leaves of a sample in order; None where the spec must look at its containers."""
        cdef tuple leaves = PyTuple_New(self.count)
        return leaves if self.take(sample, leaves, 0) >= 0 else None

    cdef Py_ssize_t take(self, value, tuple leaves, Py_ssize_t first) except -2:
        if self.kind == DICT:
            if PyDict_CheckExact(value):
                return self.take_dict(value, leaves, first)
            if type(value) is self.known:
                return self.take_fields(value, leaves, first)
            return self.take_other(value, leaves, first)
        if self.kind == NONE:
            return first if value is None else -1
        if self.kind == LIST:
            return self.take_list(value, leaves, first) if PyList_CheckExact(value) else -1
        if PyTuple_CheckExact(value) if self.kind == TUPLE else self.is_alike(value):
            return self.take_tuple(value, leaves, first)
        return -1

    cdef Py_ssize_t take_dict(self, dict value, tuple leaves, Py_ssize_t first) except -2:
        cdef Py_ssize_t number
        cdef PyObject *found
        if PyDict_Size(value) != self.length:
            return -1
        for number in range(self.length):
            found = PyDict_GetItemWithError(value, <object>PyTuple_GET_ITEM(self.keys, number))
            if found == NULL:
                return -1
            first = self.take_child(number, <object>found, leaves, first)
            if first < 0:
                return -1
        return first

    cdef Py_ssize_t take_other(self, value, tuple leaves, Py_ssize_t first) except -2:
        """Take a mapping, or the first of a dataclass with just these fields."""
        fields = plain(value)
        if not PyDict_CheckExact(fields):
            return -1
        if not isinstance(value, Mapping) and fields.keys() == set(self.keys):
            self.known = type(value)
        return self.take_dict(fields, leaves, first)

    cdef Py_ssize_t take_fields(self, value, tuple leaves, Py_ssize_t first) except -2:
        """Take a dataclass whose class is known."""
        cdef Py_ssize_t number
        for number in range(self.length):
            first = self.take_child(number, getattr(value, <object>PyTuple_GET_ITEM(self.keys, number)), leaves, first)
            if first < 0:
                return -1
        return first

    cdef Py_ssize_t take_list(self, list value, tuple leaves, Py_ssize_t first) except -2:
        cdef Py_ssize_t number
        if PyList_GET_SIZE(value) != self.length:
            return -1
        for number in range(self.length):
            if PyList_GET_SIZE(value) <= number:  # a key's __eq__ further down has made it shorter
                return -1
            first = self.take_child(number, <object>PyList_GET_ITEM(value, number), leaves, first)
            if first < 0:
                return -1
        return first

    cdef Py_ssize_t take_tuple(self, value, tuple leaves, Py_ssize_t first) except -2:
        cdef Py_ssize_t number
        if PyTuple_GET_SIZE(value) != self.length:
            return -1
        for number in range(self.length):
            first = self.take_child(number, <object>PyTuple_GET_ITEM(value, number), leaves, first)
            if first < 0:
                return -1
        return first

    cdef Py_ssize_t take_child(self, Py_ssize_t number, value, tuple leaves, Py_ssize_t first) except -2:
        child = <object>PyList_GET_ITEM(self.children, number)
        if child is not None:
            held = value  # its container may lose it to another thread, or to a key's __eq__
            return (<Structure>child).take(held, leaves, first)
        Py_INCREF(value)  # the tuple steals one
        PyTuple_SET_ITEM(leaves, first, value)
        return first + 1

    cdef bint is_alike(self, value) except -1:
        """Whether a value is a NamedTuple of the spec's name and fields whose class leaves a tuple's own ways alone."""
        cls = type(value)
        if cls is self.known:
            return True
        is_own = (isinstance(value, tuple) and cls.__iter__ is tuple.__iter__ and cls.__len__ is tuple.__len__
                  and cls.__getattribute__ is tuple.__getattribute__)
        if not is_own or shown(value) != shown(self.tree):
            return False
        self.known = cls
        return True
