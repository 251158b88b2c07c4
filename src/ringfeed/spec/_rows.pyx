# cython: language_level=3, boundscheck=False, wraparound=False
"""Fills a worker's claims row by row, in bulk or as whole batches, and takes the time of it."""

cimport cython
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItemRef, PyDict_Size
from cpython.list cimport PyList_AsTuple, PyList_CheckExact
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport (
    PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from ringfeed.ring cimport _cring as c
from ringfeed.spec._writer cimport LeafWriter, writers_of

from collections.abc import Mapping
from functools import partial

from numpy import asarray

from ringfeed.errors import SpecError
from ringfeed._failure import Nothing
from ringfeed.spec.array import shown
from ringfeed.spec.spec import plain


cdef extern from "times.h" nogil:
    uint32_t rf_timed_row(const c.rf_claim *claim)


@cython.auto_pickle(False)
cdef class RowChange:
    """Changes a sample in its row, once it is written."""

    cdef int apply(self, RowWriter writer, c.rf_claim *claim, uint32_t row) except -1:
        raise NotImplementedError


# ---- the leaves of a sample ----


cdef enum Kind:
    LEAF
    TUPLE
    NAMED
    LIST
    DICT
    NONE


cdef Kind kind_of(node):
    """Return the kind of a node of `Spec.structure`."""
    if node[0] == "tuple":
        return TUPLE if node[1] is None else NAMED
    return {"leaf": LEAF, "list": LIST, "dict": DICT, "none": NONE}[node[0]]


@cython.final
cdef class Structure:
    """One container of a spec, with those in it: finds the leaves of samples that have the same.

    `Spec` looks at all others, and refuses.
    """

    cdef int kind
    cdef bint is_flat       # no container lies in it
    cdef Py_ssize_t length  # of its children
    cdef Py_ssize_t count   # of its leaves
    cdef tuple keys         # of a dict
    cdef object tree        # the Arrays of a NamedTuple
    cdef object known       # the class of the last NamedTuple or dataclass
    cdef list children      # a Structure each; None for a leaf

    def __cinit__(self, node, tree):
        self.kind = kind_of(node)
        self.count = 1 if self.kind == LEAF else 0
        if self.kind == LEAF or self.kind == NONE:
            return
        self.tree = tree if self.kind == NAMED else None
        self.keys = tuple(node[1]) if self.kind == DICT else None
        inner = list(tree.values() if self.kind == DICT else tree)
        self.children = [None if child[0] == "leaf" else Structure(child, below)
                         for child, below in zip(node[len(node) - 1], inner)]
        self.length = len(self.children)
        counts = [1 if child is None else (<Structure>child).count for child in self.children]
        self.count = sum(counts)
        self.is_flat = self.kind == TUPLE and all([child is None for child in self.children])

    cdef tuple leaves_of(self, sample):
        """Return the leaves of a sample in order; None where the spec must look at it."""
        cdef tuple leaves
        if self.kind == LEAF:
            return (sample,)
        if self.is_flat and PyTuple_CheckExact(sample) and PyTuple_GET_SIZE(sample) == self.length:
            return <tuple>sample
        leaves = PyTuple_New(self.count)
        return leaves if self.take(sample, leaves, 0) >= 0 else None

    cdef Py_ssize_t take(self, value, tuple leaves, Py_ssize_t first) except -2:
        """Return where the next leaf goes, or -1 where a container is not certainly the spec's."""
        cdef Py_ssize_t number
        # Held: the sample may lose it to another thread, or to a key's __eq__.
        cdef object values
        if self.kind == NONE:
            return first if value is None else -1
        values = self.children_of(value)
        if values is None or PyTuple_GET_SIZE(values) != self.length:
            return -1
        for number in range(self.length):
            inner, child = <object>PyTuple_GET_ITEM(values, number), self.children[number]
            if child is not None:
                first = (<Structure>child).take(inner, leaves, first)
                if first < 0:
                    return -1
                continue
            Py_INCREF(inner)  # the tuple steals one
            PyTuple_SET_ITEM(leaves, first, inner)
            first += 1
        return first

    cdef children_of(self, value):
        """Return a container's children as a tuple; None where it is not certainly the spec's."""
        if self.kind == LIST:
            return PyList_AsTuple(value) if PyList_CheckExact(value) else None
        if self.kind == DICT:
            return self.fields_of(value)
        if PyTuple_CheckExact(value) if self.kind == TUPLE else self.is_alike(value):
            return value
        return None

    cdef tuple fields_of(self, value):
        """Return the values of a dict, mapping or dataclass, in the order of the spec's keys."""
        cdef Py_ssize_t number
        cdef PyObject *inner
        cdef tuple values
        cdef bint is_known = type(value) is self.known
        if not is_known and not PyDict_CheckExact(value):
            fields = plain(value)
            if not PyDict_CheckExact(fields):
                return None
            if not isinstance(value, Mapping) and fields.keys() == set(self.keys):
                self.known = type(value)  # a dataclass of just these fields
            value = fields
        if not is_known and PyDict_Size(value) != self.length:
            return None
        values = PyTuple_New(self.length)
        for number in range(self.length):
            key = <object>PyTuple_GET_ITEM(self.keys, number)
            if is_known:
                child = getattr(value, key)
                Py_INCREF(child)
                inner = <PyObject *>child
            elif not PyDict_GetItemRef(value, key, &inner):
                return None
            PyTuple_SET_ITEM(values, number, <object>inner)  # the tuple steals the reference
        return values

    cdef bint is_alike(self, value) except -1:
        """Whether a value is a NamedTuple of the spec's name and fields, read as a tuple."""
        cls = type(value)
        if cls is self.known:
            return True
        is_own = (isinstance(value, tuple) and cls.__iter__ is tuple.__iter__
                  and cls.__len__ is tuple.__len__
                  and cls.__getattribute__ is tuple.__getattribute__)
        if not is_own or shown(value) != shown(self.tree):
            return False
        self.known = cls
        return True


# ---- rows ----


@cython.final
cdef class RowWriter:
    """Writes samples into the rows of a claimed ticket.

    One row of each ticket is timed, or all where they are read or written together. Rows go past
    the caches where the open slots are of `beyond` bytes together, or more.
    """

    def __cinit__(self, spec, offsets, owner, uint64_t beyond):
        self.leaves = writers_of(spec, offsets, owner)
        self.spec = spec
        self.owner = owner
        self.beyond = beyond
        self.count = len(self.leaves)
        self.structure = Structure(spec.structure, spec.tree)

    cdef LeafWriter leaf(self, Py_ssize_t number):
        return <LeafWriter>self.leaves[number]

    cdef int begin(self, c.rf_claim *claim) except -1:
        """Begin to fill a ticket."""
        cdef bint stream = rf_streams(claim, self.beyond)
        for leaf in self.leaves:
            (<LeafWriter>leaf).begin(claim, stream)
        return 0

    cdef tuple leaves_of(self, sample, int64_t index, str root):
        """Return the leaves of a sample, or of a batch, in order."""
        cdef tuple leaves = (<Structure>self.structure).leaves_of(sample)
        return tuple(self.spec.flatten(sample, index, root)) if leaves is None else leaves

    cdef int write(self, sample, uint8_t *base, Py_ssize_t row, int64_t index) except -1:
        cdef Py_ssize_t number
        cdef tuple leaves = self.leaves_of(sample, index, "sample")
        for number in range(self.count):
            self.leaf(number).write(leaves[number], base, row, index)
        return 0

    cdef list views_of(self, c.rf_claim *claim, uint32_t row):
        """Return arrays over the fields of a row; of `Bytes` and `Text` what a dataset gives."""
        out = []
        for leaf in self.leaves:
            field = (<LeafWriter>leaf).field
            view = field.wrap(claim.base, claim.first_row + row, -1, self.owner)
            out.append(view if field.form is None else field.form.given(view))
        return out

    cdef int change_alone(self, c.rf_claim *claim, uint32_t row, context) except -1:
        """Change a row that was read together with others, with its own random numbers."""
        context.index = claim.indices[row]
        try:
            self.change.apply(self, claim, row)
        finally:
            context.index = None
        return 0

    cdef check_out(self, given, list out, int64_t index, str name, str function):
        """Refuse arrays that a function has replaced in place of writing into them.

        The row would stay as it was. `name`: what the function knows it as.
        """
        for leaf, field, place in zip(self.leaves_of(given, index, name), out, self.spec.leaves):
            if leaf is not field:
                where = place.path.replace("sample", name, 1)
                raise SpecError(f"dataset[{index}]: {where} was replaced, expected to be written "
                                f"into; use "
                                f"{where}[...] = in {function}")

    def samples(self, uintptr_t claim_address, getitem, context, on_error):
        """Fill the claim with getitem(index), row by row; False when the claim was cancelled.

        on_error(row, index, error) is told of each row that fails, counted in the ticket.
        """
        return fill_rows(self, <c.rf_claim *>claim_address, getitem, False, context, on_error)

    def rows(self, uintptr_t claim_address, read_into, context, on_error):
        """Fill the claim with read_into(index, out): `out` is a sample that lies in the slot."""
        return fill_rows(self, <c.rf_claim *>claim_address, read_into, True, context, on_error)

    def bulk(self, uintptr_t claim_address, getitems, context, on_error):
        """Fill the claim with getitems(indices), many at once; False when it was cancelled.

        If that fails, or has killed a worker, one at a time: the sample at fault is found and
        blamed, the others are saved.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef uint32_t row
        rows = [row for row in range(claim.rows) if claim.marks[row] != c.RF_ROW_KILLED]
        context.index = None  # many samples at once: rng() has none to belong to
        tries = [[rows]] if claim.attempt == 0 and len(rows) > 1 else []
        for parts in [*tries, [[row] for row in rows]]:
            self.begin(claim)
            for part in parts:
                if c.rf_cancelled(claim):
                    return False
                if fill_many(self, claim, part, getitems, context, on_error) and len(part) > 1:
                    return True
        return True

    def gather(self, uintptr_t claim_address, columns, context, on_error):
        """Fill the claim from columns, an array a leaf; in C where their rows are the spec's.

        Columns are looked at for each claim: a hook may have replaced them. Rows that are
        strided or of another dtype go row by row, as do those that a transform changes, and rows
        after a death (a mapped file that was cut short, say), so that only one row is blamed.
        """
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef tuple arrays = self.leaves_of(columns, 0, "sample")
        cdef bint is_plain = all([self.leaf(number).is_plain(array)
                                  for number, array in enumerate(arrays)])
        cdef int64_t length = min(len(array) for array in arrays), began_ns = c.rf_now_ns()
        cdef bint may_fail = claim.attempt or not lie_within(claim, length)
        if not is_plain or may_fail or self.change is not None:
            read = partial(row_of, self.spec, arrays, length)
            return fill_rows(self, claim, read, False, context, on_error)
        self.begin(claim)
        if c.rf_cancelled(claim):
            return False
        for number, array in enumerate(arrays):
            self.leaf(number).gather(array, claim.base, claim.first_row, claim.indices, claim.rows)
        rf_note_times(claim, claim.rows, 0, c.rf_now_ns() - began_ns)
        return True

    def batch(self, uintptr_t claim_address, getitem, uint32_t most, context, on_error):
        """Fill the whole slot with the batch getitem(index) of at most `most` rows."""
        cdef c.rf_claim *claim = <c.rf_claim *>claim_address
        cdef int64_t began_ns = c.rf_now_ns(), read_ns
        self.begin(claim)
        claim.rows_delivered = 0
        if c.rf_cancelled(claim):
            return False
        if claim.marks[0] == c.RF_ROW_KILLED:
            return True
        index = claim.indices[0]
        context.index = index
        c.rf_blame(claim, 0)
        try:
            batch = getitem(index)
            read_ns = c.rf_now_ns()
            claim.rows_delivered = self.write_batch(batch, claim.base, index, most)
            rf_note_times(claim, claim.rows_delivered, read_ns - began_ns, c.rf_now_ns() - read_ns)
        except BaseException as error:
            on_error(0, index, error)
        return True

    cdef uint32_t write_batch(
        self, batch, uint8_t *base, int64_t index, uint32_t most
    ) except? 0xffffffff:
        cdef Py_ssize_t number, rows = -1
        if batch is None:
            raise Nothing
        cdef tuple leaves = self.leaves_of(batch, index, "batch")
        for number in range(self.count):
            rows = self.leaf(number).write_batch(leaves[number], base, rows, most, index)
        return <uint32_t>rows


cdef bint lie_within(c.rf_claim *claim, int64_t length) noexcept:
    cdef uint32_t row
    for row in range(claim.rows):
        if claim.indices[row] < 0 or claim.indices[row] >= length:
            return False
    return True


def row_of(spec, tuple arrays, length, index):
    """Return a row of columns as a sample."""
    if not 0 <= index < length:
        raise IndexError(f"index {index} is out of range for arrays of {length} rows")
    return spec.unflatten([asarray(array)[index, ...] for array in arrays])


cdef bint fill_rows(
    RowWriter writer, c.rf_claim *claim, function, bint in_place, context, on_error
) except -1:
    """Fill a claim row by row."""
    cdef uint32_t row
    cdef uint32_t timed = rf_timed_row(claim)
    writer.begin(claim)
    for row in range(claim.rows):
        if c.rf_cancelled(claim):
            return False
        if claim.marks[row] == c.RF_ROW_KILLED:
            continue
        context.index = claim.indices[row]
        c.rf_blame(claim, row)
        try:
            fill_row(writer, claim, row, function, in_place, row == timed)
        except BaseException as error:
            on_error(row, claim.indices[row], error)
    return True


cdef int fill_row(
    RowWriter writer, c.rf_claim *claim, uint32_t row, function, bint in_place, bint timed
) except -1:
    """Write one sample, or have the dataset write it; and change it."""
    cdef int64_t began_ns = c.rf_now_ns() if timed else 0, read_ns = 0, write_ns = 0
    index = claim.indices[row]
    if in_place:
        fill_in_place(writer, claim, row, function, index)
    else:
        sample = function(index)
        if timed:
            read_ns = c.rf_now_ns()
        writer.write(sample, claim.base, claim.first_row + row, index)
        if timed:
            write_ns = c.rf_now_ns() - read_ns
    if writer.change is not None:
        writer.change.apply(writer, claim, row)
    if timed:
        rf_note_times(claim, 1, c.rf_now_ns() - began_ns - write_ns, write_ns)
    return 0


cdef fill_in_place(RowWriter writer, c.rf_claim *claim, uint32_t row, function, index):
    """Let the dataset itself fill a row."""
    out = writer.views_of(claim, row)
    given = writer.spec.unflatten(out)
    answer = function(index, given)
    if answer is not None and answer is not given:
        raise TypeError(f"read_into returned a {type(answer).__name__}, expected None; write the "
                        f"sample into out")
    writer.check_out(given, out, index, "out", "read_into")
    for leaf in writer.leaves:
        (<LeafWriter>leaf).clear_row(claim.base, claim.first_row + row)


cdef bint fill_many(
    RowWriter writer, c.rf_claim *claim, list rows, getitems, context, on_error
) except -1:
    """Fill some rows; False where they are to be tried one at a time."""
    cdef uint32_t row
    cdef Py_ssize_t count = 0
    cdef int64_t began_ns = c.rf_now_ns(), write_ns = 0, since_ns = 0
    cdef bint lazily  # samples are read while they are asked for, one after another
    cdef c.rf_claim beside = claim[0]
    indices = [claim.indices[row] for row in rows]
    faults = []
    if len(rows) > 1:
        # No row of a batch is blamed: a death here says only that the next try goes row by row.
        beside.first_row = 0xfffffffe - <uint32_t>rows[0]
    c.rf_blame(&beside, rows[0])
    try:
        samples = getitems(list(indices))
        lazily = type(samples) is not list and type(samples) is not tuple
        since_ns = c.rf_now_ns()
        for sample in samples:  # one by one: a generator may fill the same buffer again
            if lazily:
                since_ns = c.rf_now_ns()
            if count == len(rows):
                raise ValueError(f"__getitems__ returned more than {len(rows)} samples for as many "
                                 f"indices")
            try:
                row = rows[count]
                writer.write(sample, claim.base, claim.first_row + row, indices[count])
                if writer.change is not None:
                    writer.change_alone(claim, rows[count], context)
            except BaseException as error:
                faults.append((rows[count], indices[count], error))
            if lazily:
                write_ns += c.rf_now_ns() - since_ns
            count += 1
        if not lazily:
            write_ns = c.rf_now_ns() - since_ns
        rf_note_times(claim, count, c.rf_now_ns() - began_ns - write_ns, write_ns)
        if count != len(rows):
            raise ValueError(f"__getitems__ returned {count} samples for {len(rows)} indices")
    except BaseException as error:
        if len(rows) > 1 and not isinstance(error, KeyboardInterrupt):
            return False
        faults = [(row, claim.indices[row], error) for row in rows]
    for row, index, error in faults:
        on_error(row, index, error)
    return True
