"""A cache around a dataset: each sample is read once, and found in one file from then on.

    Cache ──▶ CacheSource ──▶ a worker's reader
                                │ all rows are there          none is looked at by Python: _records
                                │ else row by row             file: found, or read and kept
                                ▼
    fingerprint   whose samples they are      samples   what a record holds of a sample

Nothing imports this package but a program that makes a `Cache`. Imports `engine` and what lies
below it.
"""
