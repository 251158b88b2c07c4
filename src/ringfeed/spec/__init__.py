"""What a sample is, and how it lies in a slot.

    sample ──▶ Spec (a tree of Array leaves) ──▶ Layout (offsets in a slot)
                                                   ├── _rows    samples into the rows of a claim
                                                   │     _structure  its leaves    _values  what each is
                                                   │     _writer     values into fields
                                                   │       _form_writer  those that differ in length
                                                   ├── _fields  the fields of a slot as NumPy arrays
                                                   └── dlpack   the fields of a slot for frameworks

`forms` is what a leaf says whose samples differ in length. `conversion` turns uint8 into floating point on the way.
Imports only `ring`.
"""
