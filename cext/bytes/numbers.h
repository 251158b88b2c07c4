/* Python's numbers as elements of NumPy's native types, where an element certainly holds them.
 * False leaves a number to the caller's slow way, which also refuses, and the target as it was. */
#ifndef RF_NUMBERS_H
#define RF_NUMBERS_H

#include <Python.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A NumPy type: dtype.kind, and dtype.itemsize in bytes. */
#define RF_NUMBER(kind, size) ((kind) << 8 | (size))

/* All ints up to these, and down to their negatives, are floats and doubles. */
#define RF_FLOAT_INTS (1LL << 24)
#define RF_DOUBLE_INTS (1LL << 53)

#define RF_STORE(type, value, target, fits)                                                        \
    do {                                                                                           \
        type stored = (type)(value);                                                               \
        if (fits)                                                                                  \
            memcpy(target, &stored, sizeof stored);                                                \
        return fits;                                                                               \
    } while (0)

static inline bool rf_store_int(int number, long long value, void *target)
{
    switch (number) {
    case RF_NUMBER('i', 1):
        RF_STORE(int8_t, value, target, stored == value);
    case RF_NUMBER('i', 2):
        RF_STORE(int16_t, value, target, stored == value);
    case RF_NUMBER('i', 4):
        RF_STORE(int32_t, value, target, stored == value);
    case RF_NUMBER('i', 8):
        RF_STORE(int64_t, value, target, true);
    case RF_NUMBER('u', 1):
        RF_STORE(uint8_t, value, target, stored == value);
    case RF_NUMBER('u', 2):
        RF_STORE(uint16_t, value, target, stored == value);
    case RF_NUMBER('u', 4):
        RF_STORE(uint32_t, value, target, stored == value);
    case RF_NUMBER('u', 8):
        RF_STORE(uint64_t, value, target, value >= 0);
    case RF_NUMBER('f', 4):
        RF_STORE(float, value, target, value >= -RF_FLOAT_INTS && value <= RF_FLOAT_INTS);
    case RF_NUMBER('f', 8):
        RF_STORE(double, value, target, value >= -RF_DOUBLE_INTS && value <= RF_DOUBLE_INTS);
    default:
        return false;
    }
}

static inline bool rf_store_float(int number, double value, void *target)
{
    switch (number) {
    case RF_NUMBER('f', 4):
        /* Out of range, or infinite before: the slow way tells. */
        RF_STORE(float, value, target, !isinf(stored));
    case RF_NUMBER('f', 8):
        RF_STORE(double, value, target, true);
    default:
        return false;
    }
}

/* A subclass of int, such as an IntEnum, that overrides nothing that NumPy or a comparison asks. */
static inline bool rf_is_plain_int(PyObject *value)
{
    const PyTypeObject *type = Py_TYPE(value);
    const PyNumberMethods *own = type->tp_as_number, *plain = PyLong_Type.tp_as_number;
    return PyLong_Check(value) && own->nb_int == plain->nb_int &&
           own->nb_index == plain->nb_index && own->nb_float == plain->nb_float &&
           type->tp_richcompare == PyLong_Type.tp_richcompare;
}

#endif
