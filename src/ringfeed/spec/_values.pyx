# cython: language_level=3, boundscheck=False, wraparound=False
"""What a value is, by the C APIs of Python and NumPy: what is not certain here is left to `coercion`, or to `Spec`."""

cimport numpy as cnp
from cpython.bool cimport PyBool_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject, PyTypeObject
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

import numpy as np

cnp.import_array()


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    PyTypeObject *Py_TYPE(object value)


cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_View(cnp.ndarray array, void *dtype, PyTypeObject *subtype)
    object PyArray_FromAny(object value, void *dtype, int least, int most, int flags, void *context)
    PyTypeObject PyArray_Type


cdef extern from "numpy/arrayscalars.h":
    """
    _Static_assert(offsetof(PyLongDoubleScalarObject, obval) == sizeof(PyObject) &&
                       offsetof(PyCLongDoubleScalarObject, obval) == sizeof(PyObject),
                   "store_number finds the number of a scalar behind the head of its object");
    """


cdef extern from "bytes/numbers.h":
    int RF_NUMBER(int kind, int size)
    bint rf_store_int(int number, long long value, void *target)
    bint rf_store_float(int number, double value, void *target)
    bint rf_is_plain_int(object value)


cdef bint store_number(value, const Given *given, uint8_t *target) except -1:
    """Store a NumPy scalar or a Python number into a 0-d leaf that certainly takes it; False leaves it to the spec."""
    cdef int overflow = 0
    cdef long long whole
    if Py_TYPE(value) is given.scalar:
        memcpy(target, <char *><PyObject *>value + sizeof(PyObject), given.nbytes)
        return True
    if PyFloat_CheckExact(value):
        return rf_store_float(given.number, PyFloat_AS_DOUBLE(value), target)
    if PyBool_Check(value):
        if given.number != RF_NUMBER(c"b", 1):
            return False
        target[0] = value is True
        return True
    if PyLong_CheckExact(value) or rf_is_plain_int(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        return not overflow and rf_store_int(given.number, whole, target)
    return False


# NumPy's own scalars that array_of() makes arrays of.
cdef frozenset SCALARS = frozenset(np.dtype(char).type for char in np.typecodes["All"] if char != "O")
cdef object masked_arrays = None  # imported with the first subclass of an array


cdef cnp.ndarray array_of(value):
    """Return what np.asarray makes of a value, where that runs no Python code; else None."""
    if cnp.PyArray_CheckExact(value):
        return value
    if cnp.PyArray_Check(value):
        return base_view(value)
    if isinstance(value, np.generic) and type(value) in SCALARS:
        return PyArray_FromAny(value, NULL, 0, 0, 0, NULL)
    return None


cdef cnp.ndarray base_view(cnp.ndarray array):
    global masked_arrays
    if masked_arrays is None:
        masked_arrays = np.ma.MaskedArray
    return None if isinstance(array, masked_arrays) else PyArray_View(array, NULL, &PyArray_Type)
