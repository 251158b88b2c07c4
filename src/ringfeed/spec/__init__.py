"""What a sample is, and how any value gets into a slot.

    sample ──▶ Spec (a tree of Array leaves) ──▶ Layout (offsets in a slot)
                                                   ├── _rows    samples into the rows of a claim
                                                   │     _values     what each leaf of them is
                                                   │     _writer     values into fields
                                                   └── _fields  the fields of a slot as NumPy arrays

A loader of plain arrays and numbers imports none of the following:

    leaves that differ in length     strings, form_kinds, form_checks, form_values, _formed_fields, _formed_writer
    lists, tensors, other dtypes     _structure, _coerced, coerced_arrays, number_casts, foreign_specs, columns, gaps
    why a value is refused           refusals
    uint8 that becomes float         conversion
    many samples in one call         _bulk (``__getitems__``)

Imports `system` and `ring`.
"""
