"""What datasets give beside arrays of the very dtype and Python's numbers: lists, text, tensors, other dtypes.

    a sample of nested containers        ──▶ _structure   its leaves
    a value that is no array of its leaf ──▶ _values      written, where it certainly fits
                                         └─▶ arrays       an array of it, or a refusal
                                               refusals     what to return instead
                                               casts        what cast=True converts
    a spec of TensorFlow's or JAX's ──▶ foreign_specs: an Array
    columns of tensors or Series    ──▶ columns: arrays
    elements with padding           ──▶ gaps: where it lies

`spec` imports this package with the first such value, `sources` with such columns. Imports only `spec`.
"""
