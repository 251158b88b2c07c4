"""uint8 that becomes floating point: while it is written into a slot, or on its way to the model.

    Array(..., scale=, mean=, ...) ──▶ cast.Cast ──▶ spec._writer: one pass in C, as the row is written
    to_torch(cast=...)             ──▶ cast.Cast ──▶ frameworks.cast: on the device

`spec` imports this room for an Array that converts. Imports no other package.
"""
