"""What other loaders and ringfeed before 0.3 call a loader's parameters: the error says the word.

A word of torch's or Keras' means what it means there in `ringfeed.torch.DataLoader` and
`ringfeed.keras.feed` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_TORCH = {
    "num_workers": "here that is workers=",
    "drop_last": "here that is drop_remainder=",
    "pin_memory": (
        "here to_torch(device='cuda') registers the slots and copies to the GPU; leave it out"
    ),
    "pin_memory_device": "here that is to_torch(device=)",
    "prefetch_factor": "here that is slots=, the batches that exist in all",
    "persistent_workers": "here workers always stay; leave it out",
    "timeout": "here that is timeout_s=",
    "multiprocessing_context": "here that is backend='process', 'spawn' or 'fork'",
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
_REMOVED = {
    "pin": "leave it out: to_torch(device='cuda') and to_jax(device) register the slots",
    "prefetch_epochs": (
        "leave it out: worker processes read ahead, but not of a dataset with on_epoch_end()"
    ),
    "max_restarts": "leave it out: max_attempts= says how many workers may die of a sample",
    "fingerprint": "give the dataset an attribute of this name, as in dataset.fingerprint = 'v1'",
}
"""Parameters of ringfeed up to 0.2, until 1.0."""


def _removed(named: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give each parameter that there was up to 0.2, with what to write in its place."""
    rank, world_size, uneven = (named.get(name) for name in ("rank", "world_size", "uneven"))
    if not {"rank", "world_size", "uneven"}.isdisjoint(named):
        found = (
            ".find(" if named.get("shard") == "auto" else f"({rank or 0!r}, {world_size or 1!r}, "
        )
        shown = f"{found}uneven={uneven!r}" if uneven else found.removesuffix(", ")
        names = "= and ".join(name for name in ("rank", "world_size", "uneven") if name in named)
        yield names, f"write shard=ringfeed.Shard{shown})"
    if "start_method" in named:
        method = named["start_method"]
        yield "start_method", f"write backend={('process' if method == 'forkserver' else method)!r}"
    yield from ((name, _REMOVED[name]) for name in named if name in _REMOVED)


def refuse_foreign(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise TypeError for foreign or former parameters, and for values without a name."""
    if len(given) > 1:
        message = (
            f"{name}() takes the dataset alone without a name, and got {len(given) - 1} more; give "
            f"them by name, as in batch_size={given[1]!r}"
        )
        raise TypeError(message)
    said = [f"{name}() has no {names}= since 0.3; {remedy}" for names, remedy in _removed(named)]
    for words, whose, door in _DOORS:
        found = [f"{name}= is {whose}, and {words[name]}" for name in named if name in words]
        said += [*found, door] if found else []
    if said:
        raise TypeError("; ".join(said))
