"""What a training holds of a share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ringfeed._checks import MOST, check_integer
from ringfeed._classes import copied
from ringfeed._failure import UsersErrors
from ringfeed.frameworks.batch import copy_aligned
from ringfeed.frameworks.cast import CastTree, casts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ringfeed.sharing.epoch import BuildLeaves, Joined, SharedStats
    from ringfeed.sharing.terms import Terms
    from ringfeed.spec.array import AnyArray
    from ringfeed.spec.spec import Spec


class SharedLoader:
    """One training's part of a loader that several share; `share` returns it.

    Each ``for`` is one epoch, which begins when all trainings have begun theirs. A batch has the
    structure of a sample; its arrays lie over the slot, and the other trainings do not see what
    this one writes to them. An array is valid as long as it is referenced, also after `close` and
    after the host's end. When arrays of the trainings hold all slots but one for more than a
    second, batches are private copies, with one `SlotsHeldWarning`. For one thread of one process:
    a forked child gets ClosedError, and must join itself.

    It is not a `Loader`: it has no ``to_keras``, ``to_tf_dataset``, ``skip``, ``remaining``,
    ``repeat``, ``trace``, ``plan``, and `stats` has only this training's numbers.
    """

    def __init__(self, joined: Joined, terms: Terms, build: BuildLeaves | None = None) -> None:
        """Hold a place in a share; ``build`` makes a batch of the arrays of its leaves."""
        self._joined, self._terms = joined, terms
        self._build = self.spec.unflatten if build is None else build

    @property
    def spec(self) -> Spec:
        """The spec of one sample."""
        return self._joined.info.spec

    @property
    def name(self) -> str:
        """The name of the share."""
        return self._terms.name

    @property
    def mode(self) -> str:
        """What each training gets: "broadcast" or "split"."""
        return self._terms.mode

    @property
    def rank(self) -> int | None:
        """Which part of each batch this training gets; None in mode "broadcast"."""
        return self._joined.cut.rank

    @property
    def ranks(self) -> int:
        """How many trainings share the loader."""
        return self._terms.ranks

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch of this training; None where batches are made whole."""
        size = self._joined.info.batch_size
        return size if size is None or self.rank is None else size // self.ranks

    @property
    def host_pid(self) -> int:
        """The process that runs the loader."""
        return self._joined.info.host

    def __len__(self) -> int:
        """Return the batches of an epoch, as of when this training joined.

        TypeError where the loader cannot know, as of `Loader`. With ``uneven="keep"`` a rank may
        have one less.
        """
        length = self._joined.info.length
        if length is None:
            raise TypeError(self._joined.info.why_no_length)
        return length

    def __bool__(self) -> bool:
        """Whether it is there, which its length does not say: that may be unknown."""
        return True

    def __repr__(self) -> str:
        """Return whose part of what it is, in a line."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        ranks = f"{self.mode} to {self.ranks} trainings"
        return f"<SharedLoader {self.name!r}: {rank}{ranks}, of {self._joined.info.shown}>"

    # ---- epochs ----

    def __iter__(self) -> Iterator[Any]:
        """Ask for the next epoch; older iterators raise SupersededError from then on."""
        wish = self._joined.wish
        try:
            with UsersErrors():
                return self._joined.begin(self._build)
        except KeyboardInterrupt:  # perhaps when it had begun: the caller has no iterator
            self._joined.wish = wish
            raise

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` begin this epoch; all trainings must ask for the same."""
        self._joined.check_open()
        self._joined.wish = ["epoch", check_integer("epoch", epoch, 0, MOST)]

    @property
    def padding(self) -> int:
        """How many rows, 0 or 1, at the end of the last batch repeat another row."""
        return self._joined.padding

    # ---- where it is ----

    def state_dict(self) -> dict[str, Any]:
        """Return where this training is, as `Loader.state_dict` does.

        In mode "split" it is the same on all ranks. A `Loader` can load it, too.
        """
        found: dict[str, Any] = copied(self._joined.done.state)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at ``state`` with the next ``iter()``; all trainings load the same state.

        StateError, at the first ``next()``, if it is of another dataset, order or seed.
        """
        self._joined.check_open()
        kept = copied(dict(state))
        self._joined.wish = ["state", kept]
        self._joined.done.state = kept  # where it is, until the first batch

    # ---- into frameworks, each imported when it is asked for ----

    def to_torch(self, *, cast: CastTree = None) -> SharedLoader:
        """Return this loader with batches of torch tensors over the slots.

        On the CPU: move each batch yourself, as in ``x.to(device)``. Strings stay arrays.

        ``cast``: see `Loader.to_keras`. SpecError for dtypes that torch lacks, and for what cannot
        be cast so.
        """
        return SharedLoader(self._joined, self._terms, in_torch(self.spec, cast))

    def to_jax(self, *, cast: CastTree = None) -> SharedLoader:
        """Return this loader with batches that are private jax arrays.

        They are on the first CPU. JAX runs tens of steps behind the program, and would hold the
        slots of all trainings.
        ``cast`` and errors as of `Loader.to_jax`.
        """
        return SharedLoader(self._joined, self._terms, in_jax(self.spec, cast))

    # ---- the end ----

    def stats(self) -> SharedStats:
        """Return what this training has had."""
        return self._joined.stats

    def close(self) -> None:
        """Leave the share; arrays that are still referenced stay valid. The others go on."""
        self._joined.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *unused: object) -> None:
        """Leave the share."""
        self.close()


def in_torch(spec: Spec, cast: CastTree) -> BuildLeaves:
    """Return what makes tensors over the arrays."""
    from ringfeed.frameworks import torch as framework  # noqa: PLC0415 - imports torch

    framework.check_dtypes(spec.leaves)
    casts, tensor_of = (
        framework.torch_casts(casts_of(spec, cast, "to_torch")),
        framework.TORCH.from_numpy,
    )
    return lambda leaves: spec.unflatten(casts([*map(tensor_of, leaves)]))


def in_jax(spec: Spec, cast: CastTree) -> BuildLeaves:
    """Return what makes arrays of copies."""
    from ringfeed.frameworks import jax as framework  # noqa: PLC0415 - imports JAX

    asked = casts_of(spec, cast, "to_jax", framework.check_width)
    own, casts = framework.conversions(spec.leaves, asked)
    copiers: list[Callable[[AnyArray], AnyArray]] = [
        own.get(number, copy_aligned) for number in range(len(spec.leaves))
    ]
    tensor_of: Callable[[Any], Any] = framework.jax_framework().from_numpy

    def build(leaves: list[Any]) -> Any:
        return spec.unflatten(
            casts([tensor_of(copy(leaf)) for copy, leaf in zip(copiers, leaves, strict=True)])
        )

    return build
