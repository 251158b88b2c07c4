"""What a sample is, and how it lies in a slot.

    sample ──▶ Spec (a tree of Array leaves) ──▶ Layout (offsets in a slot)
                                                   ├── _rows    samples into the rows of a claim
                                                   │     _values     what each leaf of them is
                                                   │     _writer     values into fields
                                                   └── _fields  the fields of a slot as NumPy arrays

`form` is what is asked of a leaf whose samples differ in length; the room `forms` has the answers. The room `coercion`
finds leaves in nested containers, and makes arrays of values that are neither arrays nor numbers, `conversion` turns
uint8 into floating point on the way, and `bulk` fills a claim with many samples at once. Imports only `ring` and, where
they are needed, those rooms.
"""
