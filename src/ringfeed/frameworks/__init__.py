"""A batch in a framework's own tensors. A module imports its framework when it is asked for.

    Lease ──▶ batch: tensors over the slot, or copies ──▶ device ──▶ cast ──▶ structure

`dlpack` shows the fields of a slot to all frameworks. `base` is the loader's interface to the
adapters, and what `batch` asks of each adapter. `device` also registers slots with a driver, so
that a GPU copies from them by itself. No module here imports the engine or the loader.
"""
