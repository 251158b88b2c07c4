"""What a loader's parameters are called elsewhere: one error says the word that each has here, and which door to take.

A word means what it means there in `ringfeed.torch.DataLoader` and `ringfeed.keras.feed` alone.
"""

from __future__ import annotations

from typing import Any

_TORCH = {
    "num_workers": "here that is workers=",
    "drop_last": "here that is drop_remainder=",
    "pin_memory": "here that is pin=, and to_torch(device='cuda') copies to the GPU",
    "pin_memory_device": "here that is to_torch(device=)",
    "prefetch_factor": "here that is slots=, the batches that exist in all",
    "persistent_workers": "here workers always stay; leave it out",
    "timeout": "here that is timeout_s=",
    "multiprocessing_context": "here that is start_method=",
    "generator": "here that is seed=",
    "in_order": "here batches always come in order; leave it out",
}
_KERAS = {
    "max_queue_size": "here that is slots=",
    "use_multiprocessing": "here that is backend='process' or 'thread'",
}
_DOORS = (
    (_TORCH, "torch's", "ringfeed.torch.DataLoader takes torch's words as they are"),
    (_KERAS, "Keras'", "ringfeed.keras.feed() and install() take Keras' datasets as they are"),
)


def refuse_foreign(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise TypeError for arguments of a loader that are words of torch's or Keras', and for values without a name."""
    if len(given) > 1:
        message = (
            f"{name}() takes the dataset alone without a name, and got {len(given) - 1} more; give them by name, as in "
            f"batch_size={given[1]!r}"
        )
        raise TypeError(message)
    said = []
    for words, whose, door in _DOORS:
        found = [f"{name}= is {whose}, and {words[name]}" for name in named if name in words]
        said += [*found, door] if found else []
    if said:
        raise TypeError("; ".join(said))
