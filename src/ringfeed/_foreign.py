"""Parameters that a loader does not have: the error says what the loader calls them.

They are other loaders' words, those of ringfeed before 0.3, and misspelt ones.

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


_METHODS = "write backend='process', 'spawn' or 'fork'"
_OURS = {
    "workers": "num_workers",
    "slots": "prefetch_factor",
    "drop_remainder": "drop_last",
    "timeout_s": "timeout",
    "seed": "generator",
}
"""Parameters of `ringfeed.Loader`, with torch's words for them."""


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
        written = "process" if method == "forkserver" else method
        known = written in ("process", "spawn", "fork")
        yield "start_method", f"write backend={written!r}" if known else _METHODS
    yield from ((name, _REMOVED[name]) for name in named if name in _REMOVED)


def refuse_foreign(loader: type, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise TypeError for parameters that a loader does not have, and for values without a name.

    A word that resembles none of its own is left to Python, which refuses it.
    """
    name = loader.__name__
    own = loader.__init__.__kwdefaults__ or {}  # type: ignore[misc]  # a class, and no instance
    if len(given) > 1:
        raise TypeError(
            f"{name}() takes the dataset alone without a name, and got {len(given) - 1} more; give "
            f"them by name, as in batch_size={given[1]!r}"
        )
    said = [f"{name}() has no {names}= since 0.3; {remedy}" for names, remedy in _removed(named)]
    for words, whose, door in _DOORS:
        found = [f"{name}= is {whose}, and {words[name]}" for name in named if name in words]
        said += [*found, door] if found else []
    from difflib import get_close_matches  # noqa: PLC0415 - on demand

    near = {word: get_close_matches(word, own, 1) for word in named if word not in own}
    said = said or [
        f"{name}() has no {word}=; did you mean {close[0]}=?"
        for word, close in near.items()
        if close
    ]
    if said:
        raise TypeError("; ".join(said))


def refuse_ours(named: dict[str, Any]) -> None:
    """Raise TypeError for parameters of `ringfeed.Loader` in torch's place."""
    said = [
        f"{word}= is Loader's, and here that is {_OURS[word]}=" for word in named if word in _OURS
    ]
    if said:
        raise TypeError("; ".join(said))
