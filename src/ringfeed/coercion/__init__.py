"""What datasets give beside arrays of the very dtype and Python's numbers: lists, text, tensors, other dtypes.

    a value that is no array of its leaf ──▶ _values      written, where it certainly fits
                                         └─▶ arrays       an array of it, or a refusal
                                               refusals     what to return instead
    a spec of TensorFlow's or JAX's ──▶ foreign_specs: an Array

`spec` imports this package with the first such value. Imports only `spec`.
"""
