"""Leaves whose samples differ in length: ragged or padded arrays, bytes and text.

    Array(form=), Bytes, Text ──▶ Form (checks)   what a leaf says of its samples
                                   ├── _fields    the fields of such leaves, made one array when a batch is taken
                                   ├── _writer    samples into the rows of a claim (values: what is none, or too long)
                                   └── Ragged, Padded, Masked   what a batch holds

`spec` knows a form by its interface alone, `spec.form`, and imports this package where a leaf has one. Imports `spec`
and `ring`.
"""
