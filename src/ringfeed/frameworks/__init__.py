"""A batch in a framework's own tensors. A module imports its framework when it is asked for.

    Lease ──▶ batch: tensors over the slot, or copies ──▶ device ──▶ cast ──▶ structure

`dlpack` shows the fields of a slot to all of them. `base` says what all of them may know of a
loader, and what `batch` must know of each of them. `device_slots` registers slots with a driver, so
that a GPU copies them by itself. No module here imports the engine or the loader.
"""
