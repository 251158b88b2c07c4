"""A loader's state as flat JSON, and its check against the loader that loads it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._callers import callers_depth
from ringfeed._classes import copied, fingerprint_of
from ringfeed._units import shorten
from ringfeed.engine.position import Place
from ringfeed.errors import StateError
from ringfeed.orders.checks import is_count

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.engine.position import Position
    from ringfeed.orders.making import OrderParameters

VERSION = 1
_COUNTS = ("version", "epoch", "samples")
_OF_HOOKS = ("dataset", "hooks", "broken_off")
_SAME_DATASET = "give the dataset that the state was taken with"
_REMEDIES = {
    "length": _SAME_DATASET,
    "spec": _SAME_DATASET,
    "fingerprint": _SAME_DATASET,
    "seed": "give the loader seed={0!r}",
    "order": "give the loader the same shuffle=, sampler= and weights",
}


class Identity:
    """What a state and the loader that loads it must have in common."""

    def __init__(self, source: Source, position: Position, asked: OrderParameters) -> None:
        """Identify a dataset by its ``fingerprint``, or that of Hugging Face's datasets.

        ``asked``: whether the loader drew its seed, so that it may take the state's.
        """
        self._source, self._position, self._asked = source, position, asked
        self._spec = shorten(repr(source.spec))
        self._has_warned = False

    def _now(self) -> dict[str, Any]:
        sampler = self._position.sampler
        now = {
            "length": sampler.length if sampler.sample_count is None else sampler.sample_count,
            "seed": self._source.seed,
            "order": sampler.order,
            "spec": self._spec,
        }
        fingerprint = fingerprint_of(self._source.given)
        return now if fingerprint is None else {**now, "fingerprint": shorten(str(fingerprint))}

    def state(self, place: Place) -> dict[str, Any]:
        """Return the state at a place; warns once if an iterable's states cannot be kept."""
        running = self._position.running
        states = None if running is None or self._has_warned else running.states
        if states is not None and (refusal := states.refusal()) is not None:
            self._has_warned = True
            stream, why = refusal
            _warn(
                f"state_dict() of {self._source.describe_stream(stream)} {why}; a loader that goes "
                "on from this state reads the iterable from its start"
            )
        others = {"sampler": place.state, "streams": place.streams, **(place.hooks or {})}
        state: dict[str, Any] = copied(
            {
                "version": VERSION,
                "epoch": place.epoch,
                "samples": place.samples,
                "batch_size": self._asked.batch_size,
                **self._now(),
                "world_size": self._position.shard.world_size,
                **{name: value for name, value in others.items() if value is not None},
            }
        )
        return state

    def place(self, state: Mapping[str, Any], *, strict: bool) -> Place:
        """Return the place of a state.

        With ``strict``, raises StateError if the state is of another loader.
        """
        _check(state)
        state = copied(dict(state))
        hooks = {name: state[name] for name in _OF_HOOKS if name in state} or None
        kept = state.get("sampler"), hooks, state.get("streams")
        place = Place(state["epoch"], state["samples"], *kept)
        here = self._position.hooks
        if hooks is None or here is None or hooks == here.now():
            return self._checked(place, state, strict=strict)
        # The dataset's length may be that of the state when its hooks have run.
        check = partial(self._checked, state=state, strict=strict)
        return self._checked(place, state, strict=strict, has_length=False)._replace(check=check)

    def _checked(
        self, place: Place, state: Mapping[str, Any], *, strict: bool, has_length: bool = True
    ) -> Place:
        """Return a place of this state, or the start of its epoch; StateError as `place` says."""
        if difference := self._difference(state, has_length=has_length):
            anew = f"epoch {place.epoch} begins anew"
            if strict:
                anew = f"begins epoch {place.epoch} anew"
                raise StateError(f"{difference}; or load it with strict=False, which {anew}")
            _warn(f"{difference}; {anew}")
            return Place(place.epoch)
        if has_length:
            self._position.sampler.check_state(place.samples, place.state)
        _check_streams(place, self._source.streams)
        return place._replace(check=None)

    def seed(self, state: Mapping[str, Any]) -> int:
        """Return the seed to continue with: the state's, if this loader drew its own."""
        seed: int = state["seed"] if self._asked.seed_is_drawn else self._source.seed
        return seed

    def _difference(self, state: Mapping[str, Any], *, has_length: bool) -> str:
        """Say how the loader differs from the one of the state; "" if it does not."""
        now, sampler = self._now(), self._position.sampler
        if self._asked.seed_is_drawn:
            _check_count(state, "seed")
            now["seed"] = state["seed"]
        if not has_length:
            now["length"] = state.get("length")
        for name, remedy in _REMEDIES.items():
            there, here = state.get(name), now.get(name)
            if there != here:
                return (
                    f"the state was taken with {name} {there!r}, and this loader has {name} "
                    f"{here!r}; {remedy.format(there)}"
                )
        samples, there = state["samples"], state.get("world_size")
        here = self._position.shard.world_size
        if sampler.keeps_world_size and samples and there != here:
            return (
                f"the state was taken with world_size {there!r} amid an epoch, and this loader has "
                f"world_size {here}, with other batches; give it {there!r} ranks up to the end of "
                "an epoch"
            )
        is_sure = has_length and not (sampler.may_exceed or sampler.ends_unsaid)
        if is_sure and sampler.length is not None and samples > sampler.length:
            return (
                f"the state is at sample {samples} of an epoch of {sampler.length}; it was changed "
                "since"
            )
        return ""


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=callers_depth())


def _check(state: Any) -> None:
    """Raise StateError unless a state_dict() of this version returned this value."""
    is_mapping = isinstance(state, Mapping)
    lacks = [name for name in _COUNTS if not (is_mapping and name in state)]
    if lacks:
        without = f" without {lacks[0]!r}" if is_mapping else ""
        raise StateError(
            f"the state is a {type(state).__name__}{without}, expected what state_dict() returned"
        )
    if state["version"] != VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, expected {VERSION}; "
            f"load it with the release of ringfeed that made it"
        )
    for name in (*_COUNTS, "hooks"):
        if name in state:
            _check_count(state, name)
    pairs = state.get("broken_off", [])
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and [*map(is_count, pair)] == [True, True] for pair in pairs
    ):
        _refuse("broken_off", pairs, "a list of lists of two ints of 0 or more")


def _check_count(state: Mapping[str, Any], name: str) -> None:
    if not is_count(value := state.get(name)):
        _refuse(name, value, "an int of 0 or more")


def _refuse(name: str, value: object, expected: str) -> None:
    raise StateError(
        f"the state's {name} is {shorten(repr(value))}, expected {expected}; it was changed since"
    )


def _check_streams(place: Place, count: int) -> None:
    """Raise StateError unless these are the states of this number of iterables."""
    streams = place.streams
    if streams is None:
        return
    if not isinstance(streams, list) or len(streams) != count:
        size = f" of {len(streams)}" if isinstance(streams, list) else ""
        raise StateError(
            f"the state's streams is a {type(streams).__name__}{size}, expected a list of {count}; "
            "give the iterables it was taken with"
        )
    for number, stream in enumerate(streams):
        read: Any = stream.get("read") if isinstance(stream, dict) and "of" in stream else None
        if stream is not None and not (is_count(read) and read <= place.samples):
            expected = f"None, or a dict of 'read', an int from 0 to {place.samples}, and 'of'"
            _refuse(f"streams[{number}]", stream, expected)
