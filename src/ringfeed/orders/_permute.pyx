# cython: language_level=3, boundscheck=False, wraparound=False
"""The bijection behind the shuffled order, for many numbers at once: see `permutation`."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "bytes/permute.h" nogil:
    enum: RF_ROUNDS
    void rf_permute(uint64_t *numbers, size_t count, uint64_t length, const uint32_t *keys)


ROUNDS = RF_ROUNDS
MAX_LENGTH = 2**62  # its halves have 31 bits each


def walk(uint64_t[::1] numbers not None, uint64_t length, const uint32_t[::1] keys not None):
    """Replace each number below `length`, in place, by the sample that comes there.

    `length`: 2 to MAX_LENGTH.
    """
    if keys.shape[0] != RF_ROUNDS or not 1 < length <= MAX_LENGTH:
        raise ValueError(
            f"{keys.shape[0]} keys and {length} samples, expected {ROUNDS} and 2 to {MAX_LENGTH}"
        )
    if numbers.shape[0]:
        with nogil:
            rf_permute(&numbers[0], <size_t>numbers.shape[0], length, &keys[0])
