"""What a sample is, and how it lies in a slot.

    sample ──▶ Spec (a tree of Array leaves) ──▶ Layout (offsets in a slot)
                                                   ├── _rows    samples into the rows of a claim
                                                   │     _structure  its leaves    _values  what each is
                                                   │     _writer     values into fields
                                                   └── _fields  the fields of a slot as NumPy arrays

`form` is what is asked of a leaf whose samples differ in length; the room `forms` has the answers. What is given beside
arrays and numbers is for the room `given`. `conversion` turns uint8 into floating point on the way. Imports only `ring`
and, where a leaf has a form or such a value comes, those rooms.
"""
