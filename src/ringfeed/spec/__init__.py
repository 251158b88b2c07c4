"""What a sample is, and how any value gets into a slot.

    sample ──▶ Spec (a tree of Array leaves) ──▶ Layout (offsets in a slot)
                 ├── _rows      the rows of a claim: finds the leaves of a sample
                 │     └── _writer    a LeafWriter each: what C certainly recognises
                 │            └── fitting   all else, converted by NumPy, or refused
                 └── _fields    the fields of a slot as NumPy arrays

A loader of plain arrays and numbers imports none of the following:

    leaves that differ in length     forms, form_arrays, _forms
    lists, text, other dtypes        fitting, values (in a worker), conversion
    tensors, others' columns         _tensors, columns
    why a value is refused           refusals
    padding within elements          gaps

Imports `system` and `ring`.
"""
