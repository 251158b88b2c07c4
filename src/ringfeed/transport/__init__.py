"""A dataset's way to worker processes: pickled once, its large arrays in shared memory.

    dataset ──▶ pickler ──▶ shared_dataset (a memfd) ──▶ the dataset in each worker

`unpicklable` names what cannot travel, `framework_stubs` stands in for frameworks that a worker
need not import, `modules` says which of the user's own modules travel by value. Imports `datasets`
and what lies below.
"""
