"""A loader's state as flat JSON, checked against the loader that is to go on from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ringfeed._callers import callers_depth
from ringfeed._classes import copied, fingerprint_of
from ringfeed._units import shorten
from ringfeed.engine.position import Place
from ringfeed.errors import StateError

if TYPE_CHECKING:
    from ringfeed.datasets.base import Source
    from ringfeed.engine.position import Position

VERSION = 1
_COUNTS = ("version", "epoch", "samples")
_OF_HOOKS = ("dataset", "hooks", "broken_off")
_REMEDIES = {
    "length": "give the dataset that the state was taken with",
    "spec": "give the dataset that the state was taken with",
    "fingerprint": "give the dataset that the state was taken with",
    "seed": "give the loader seed={0!r}",
    "order": "give the loader the same shuffle=, sampler= and weights",
}


class Identity:
    """What must be the same where a state is taken and where it is loaded."""

    def __init__(
        self,
        source: Source,
        position: Position,
        batch_size: int | None,
        *,
        seed_is_drawn: bool,
    ) -> None:
        """Tell a dataset from others by its ``fingerprint``, else by the one that Hugging Face's datasets have.

        ``seed_is_drawn``: whether another seed than the state's was not asked for.
        """
        self._source = source
        self._position = position
        self._batch_size = batch_size
        self._seed_is_drawn = seed_is_drawn
        self._spec = shorten(repr(source.spec))
        self._is_told = False

    def _now(self) -> dict[str, Any]:
        sampler = self._position.sampler
        length = sampler.length if sampler.sample_count is None else sampler.sample_count
        now = {
            "length": length,
            "seed": self._source.seed,
            "order": sampler.order,
            "spec": self._spec,
        }
        found = fingerprint_of(self._source.given)
        return now if found is None else {**now, "fingerprint": shorten(str(found))}

    def state(self, place: Place) -> dict[str, Any]:
        """Return the state at a place; warns once where an iterable has states that cannot be kept."""
        self._tell_what_is_refused()
        state = {
            "version": VERSION,
            "epoch": place.epoch,
            "samples": place.samples,
            "batch_size": self._batch_size,
            **self._now(),
            "world_size": self._position.shard.world_size,
        }
        if place.state is not None:
            state["sampler"] = place.state
        if place.streams is not None:
            state["streams"] = place.streams
        found: dict[str, Any] = copied({**state, **(place.hooks or {})})
        return found

    def _tell_what_is_refused(self) -> None:
        epoch = self._position.under_way
        refused = (
            None
            if epoch is None or epoch.states is None or self._is_told
            else epoch.states.refusal()
        )
        if refused is not None:
            self._is_told = True
            stream, why = refused
            message = (
                f"state_dict() of {self._source.describe_stream(stream)} {why}; a loader that goes "
                "on from this state reads the iterable from its start"
            )
            warnings.warn(message, UserWarning, stacklevel=callers_depth())

    def place(self, state: Mapping[str, Any], *, strict: bool) -> Place:
        """Return the place of a state; StateError where it is of another loader, with ``strict``."""
        _check(state)
        state = copied(dict(state))
        hooks = {name: state[name] for name in _OF_HOOKS if name in state} or None
        place = Place(
            state["epoch"], state["samples"], state.get("sampler"), hooks, state.get("streams")
        )
        if hooks is None or not self._source.hooks or hooks == self._position.hooks.now():
            return self._checked(place, state, strict=strict)
        # The dataset's length may be that of the state when its hooks have run.
        check = partial(self._checked, state=state, strict=strict)
        now = self._now()["length"]
        return self._checked(
            place, {**state, "length": now}, strict=strict, has_length=False
        )._replace(check=check)

    def _checked(
        self, place: Place, state: Mapping[str, Any], *, strict: bool, has_length: bool = True
    ) -> Place:
        """Return a place of this state, or the start of its epoch; StateError as `place` says."""
        if (difference := self._difference(state, has_length=has_length)) is None:
            if has_length:
                self._position.sampler.check_state(state["samples"], state.get("sampler"))
            _check_streams(place, self._source.streams)
            return place._replace(check=None)
        if strict:
            message = (
                f"{difference}; or load it with strict=False, which begins epoch {place.epoch} anew"
            )
            raise StateError(message)
        warnings.warn(
            f"{difference}; epoch {place.epoch} begins anew",
            UserWarning,
            stacklevel=callers_depth(),
        )
        return Place(place.epoch)

    def seed(self, state: Mapping[str, Any]) -> int:
        """Return the seed to go on with: the state's, where this loader has drawn its own."""
        found: int = state["seed"] if self._seed_is_drawn else self._source.seed
        return found

    def _difference(self, state: Mapping[str, Any], *, has_length: bool) -> str | None:
        now = self._now()
        if self._seed_is_drawn:
            now["seed"] = _count(state, "seed")
        for name, remedy in _REMEDIES.items():
            there, here = state.get(name), now.get(name)
            if there != here:
                return (
                    f"the state was taken with {name} {there!r}, and this loader has {name} "
                    f"{here!r}; {remedy.format(there)}"
                )
        sampler = self._position.sampler
        here, there = self._position.shard.world_size, state.get("world_size")
        if sampler.keeps_world_size and state["samples"] and there != here:
            return (
                f"the state was taken with world_size {there!r} amid an epoch, and this loader has "
                f"world_size {here}, with other batches; give it {there!r} ranks up to the end of "
                "an epoch"
            )
        length = (
            sampler.length
            if has_length and not (sampler.may_exceed or sampler.ends_unsaid)
            else None
        )
        if length is not None and state["samples"] > length:
            return (
                f"the state is at sample {state['samples']} of an epoch of {length}; it was "
                "changed since"
            )
        return None


def _check(state: Mapping[str, Any]) -> None:
    """Raise StateError for what no state_dict() of this version has returned."""
    missing = [name for name in _COUNTS if name not in state] if isinstance(state, Mapping) else []
    if not isinstance(state, Mapping) or missing:
        lacks = f" without {missing[0]!r}" if missing else ""
        message = (
            f"the state is a {type(state).__name__}{lacks}, expected what state_dict() returned"
        )
        raise StateError(message)
    if state["version"] != VERSION:
        message = (
            f"the state has version {state['version']!r}, expected {VERSION}; "
            f"load it with the release of ringfeed that made it"
        )
        raise StateError(message)
    for name in (*_COUNTS, "hooks"):
        if name in state:
            _count(state, name)
    pairs = state.get("broken_off", [])
    are_pairs = isinstance(pairs, list) and all(
        isinstance(one, list) and len(one) == 2  # noqa: PLR2004
        for one in pairs
    )
    if not are_pairs or not all(type(number) is int and number >= 0 for number in chain(*pairs)):
        message = (
            f"the state's broken_off is {shorten(repr(pairs))}, expected a list of lists of two "
            "ints of 0 or more; it was changed since"
        )
        raise StateError(message)


def _count(state: Mapping[str, Any], name: str) -> int:
    """Return a number of the state; StateError where it is none."""
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        message = (
            f"the state's {name} is {value!r}, expected an int of 0 or more; it was changed since"
        )
        raise StateError(message)
    return value


def _check_streams(place: Place, count: int) -> None:
    """Raise StateError for what are no states of so many iterables."""
    streams = place.streams
    if streams is None:
        return
    if not isinstance(streams, list) or len(streams) != count:
        found = (
            f"a list of {len(streams)}"
            if isinstance(streams, list)
            else f"a {type(streams).__name__}"
        )
        message = (
            f"the state's streams is {found}, expected a list of {count}; give the iterables it "
            "was taken with"
        )
        raise StateError(message)
    for number, one in enumerate(streams):
        read = one.get("read") if isinstance(one, dict) and "of" in one else None
        if one is not None and not (isinstance(read, int) and 0 <= read <= place.samples):
            message = (
                f"the state's streams[{number}] is {shorten(repr(one))}, expected None, or a dict "
                f"of 'read', an int from 0 to {place.samples}, and 'of'; it was changed since"
            )
            raise StateError(message)
