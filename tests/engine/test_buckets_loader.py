"""Loaders of Buckets: batches that fit their slots, on several ranks, and from any place on."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from itertools import chain
from typing import Any

import numpy as np
import pytest

import ringfeed

pytestmark = pytest.mark.once

LENGTHS = np.random.default_rng(4).integers(1, 40, 203)
BUCKETS = ringfeed.orders.Buckets(LENGTHS, max_tokens=160, window=60)


class Texts:
    """Samples of one shape, filled up to their length, with their number and a random one."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = np.zeros(40, np.int64)
        tokens[: LENGTHS[index]] = index
        return {"tokens": tokens, "index": index, "noise": ringfeed.rng().random()}


def loader(buckets: ringfeed.orders.Buckets = BUCKETS, **given: Any) -> ringfeed.Loader:
    """Return a loader of these texts that fills in this process, unless told otherwise."""
    return ringfeed.Loader(
        Texts(), batch_sampler=buckets, **{"workers": 0, "seed": 3, "timeout_s": 120, **given}
    )


def batches(made: ringfeed.Loader) -> list[list[int]]:
    """Return the samples of each batch of the next epoch, whose other leaves must be theirs."""
    found = []
    for batch in made:
        index = batch["index"]
        longest = LENGTHS[index].max()
        assert np.array_equal((batch["tokens"] > 0).sum(axis=1), LENGTHS[index] * (index > 0))
        assert not batch["tokens"][:, longest:].any()
        assert longest * len(index) <= 160
        found.append(index.tolist())
    return found


def noise(made: ringfeed.Loader) -> list[bytes]:
    """Return the random numbers of the next epoch's batches."""
    return [batch["noise"].tobytes() for batch in made]


@pytest.mark.parametrize(
    "workers",
    [{"workers": 0}, {"workers": 1}, {"workers": 2}, {"workers": 2, "backend": "thread"}],
    ids=str,
)
def test_each_sample_comes_once_an_epoch(workers: dict[str, Any]) -> None:
    """In as many batches as was said, in every epoch, the same whichever process fills them."""
    with loader(**workers) as made, loader() as alone:
        for _ in range(2):
            found = batches(made)
            assert sorted(chain(*found)) == [*range(203)]
            assert len(found) == len(made)
            assert found == batches(alone)
        assert noise(made) == noise(alone)


def test_the_example_works_as_it_stands() -> None:
    """That of the docstring."""
    text = inspect.getdoc(ringfeed.orders.Buckets)
    assert text is not None
    code = textwrap.dedent(text[text.index("    texts =") : text.index("In the slots")])
    found: dict[str, Any] = {"np": np, "ringfeed": ringfeed}
    widths: list[int] = []
    found["note"] = widths.append
    code = code.replace("Loader(Texts(),", "Loader(Texts(), workers=0,")
    exec(f"{code.rstrip()}\n    note(tokens.size)\n", found)  # noqa: S102 - our own
    with found["loader"] as made:
        assert len(widths) == len(made)
    assert max(widths) <= 512
    assert sum(widths) < 1.1 * sum(found["lengths"])


def test_the_slots_hold_the_largest_batch() -> None:
    """No more, and fewer where max_batch_size says so."""
    with loader() as made:
        most = max(map(len, batches(made)))
        assert (made.plan.layout.rows, made.batch_size, made.drop_remainder) == (most, None, False)
        assert repr(made).startswith(
            f"<Loader of Texts: batches of up to {most}, no workers, slots: 4"
        )
    with loader(max_batch_size=8) as made:
        assert made.plan.layout.rows == max(map(len, batches(made))) == 8


def test_smaller_batches_can_be_left_out() -> None:
    """With fewer batches then, all of the size that their bucket has."""
    with loader(ringfeed.orders.Buckets(LENGTHS, batch_sizes=4)) as made:
        whole = batches(made)
    with loader(ringfeed.orders.Buckets(LENGTHS, batch_sizes=4), drop_remainder=True) as made:
        assert [*map(len, whole)] == [4] * 50 + [3]
        assert len(made) == 50
        assert batches(made) == whole[:50]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_an_epoch_goes_on_where_it_was_left(cut: int, workers: int) -> None:
    """With the batches that were left, bit for bit, then with the next epoch.

    Nothing but a place is kept.
    """
    with loader() as made:
        whole = [noise(made), noise(made)]
    with loader(workers=workers) as made:
        iterator = iter(made)
        for _ in range(cut):
            next(iterator)
        state = json.loads(json.dumps(made.state_dict()))
    assert (state["epoch"], state["samples"], state["length"]) == (0, cut, 203)
    assert re.fullmatch("buckets:[0-9a-f]{8}", state["order"])
    assert "sampler" not in state
    with loader(seed=None, workers=workers) as made:
        made.load_state_dict(state)
        assert made.remaining == len(whole[0]) - cut
        assert [noise(made), noise(made)] == [whole[0][cut:], whole[1]]
    with loader() as made:
        made.skip(batches=cut)
        assert noise(made) == whole[0][cut:]


# ---- ranks ----


@pytest.mark.parametrize("uneven", ["pad", "keep", "drop"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_all_ranks_have_like_batches_at_each_step(world_size: int, uneven: Any) -> None:
    """Of as many samples, and of like length.

    Each sample comes once, but for what uneven= repeats or leaves out.
    """
    made = [loader(shard=ringfeed.Shard(rank, world_size, uneven)) for rank in range(world_size)]
    for _ in range(2):
        found = [batches(one) for one in made]
        assert [*map(len, found)] == [*map(len, made)]
        full = min(map(len, found)) - 1
        for step in range(full):
            rows = [one[step] for one in found]
            assert len({*map(len, rows)}) == 1
            longest = [int(LENGTHS[one].max()) for one in rows]
            assert max(longest) <= 1.6 * min(longest) + 3
        every = sorted(chain(*chain(*found)))
        repeated = sum(one.padding for one in made)
        assert len(every) == {"pad": 203 + repeated, "keep": 203, "drop": len(every)}[uneven]
        assert len({*every}) == (203 if uneven != "drop" else len(every))
        assert repeated == (-203 % world_size if uneven == "pad" else 0)
        for one in found:
            assert uneven == "keep" or len(one) == len(found[0])


def test_padding_is_the_last_row_of_the_last_batch() -> None:
    """As for other orders: without these rows each sample comes once."""
    made = [loader(shard=ringfeed.Shard(rank, 4)) for rank in range(4)]
    found = []
    for one in made:
        rows = batches(one)
        found += [*chain(*rows[:-1]), *rows[-1][: len(rows[-1]) - one.padding]]
    assert sorted(found) == [*range(203)]


def test_ranks_go_on_together() -> None:
    """From one state, at the same step."""
    made = [loader(shard=ringfeed.Shard(rank, 2)) for rank in range(2)]
    whole = [batches(one) for one in made]
    states = []
    for rank in range(2):
        with loader(shard=ringfeed.Shard(rank, 2)) as one:
            iterator = iter(one)
            for _ in range(5):
                next(iterator)
            states.append(one.state_dict())
    assert states[0] == states[1]
    assert (states[0]["samples"], states[0]["world_size"]) == (10, 2)
    for one, rows in zip(made, whole, strict=True):
        one.load_state_dict(states[0])
        assert one.remaining == len(rows) - 5
        assert batches(one) == rows[5:]


def test_other_ranks_go_on_from_the_end_of_an_epoch() -> None:
    """Amid one, their batches are others: that is refused, or begins the epoch anew."""
    with loader(shard=ringfeed.Shard(0, 2)) as one:
        iterator = iter(one)
        next(iterator)
        amid = one.state_dict()
        for _ in iterator:
            pass
        at_end = one.state_dict()
    assert (at_end["epoch"], at_end["samples"]) == (1, 0)
    text = (
        "the state was taken with world_size 2 amid an epoch, and this loader has world_size 1, "
        "with other batches; give it 2 ranks up to the end of an epoch"
    )
    with loader() as alone:
        epochs = [batches(alone), batches(alone)]
        with pytest.raises(ringfeed.StateError) as e:
            alone.load_state_dict(amid)
        assert str(e.value) == f"{text}; or load it with strict=False, which begins epoch 0 anew"
        with pytest.warns(UserWarning, match=re.escape(f"{text}; epoch 0 begins anew")):
            alone.load_state_dict(amid, strict=False)
        assert batches(alone) == epochs[0]
        alone.load_state_dict(at_end)
        assert batches(alone) == epochs[1]


def test_another_cut_is_another_order() -> None:
    """A state of other lengths, budgets or windows is refused."""
    with loader() as one:
        next(iter(one))
        state = one.state_dict()
    with loader(ringfeed.orders.Buckets(LENGTHS, max_tokens=170, window=60)) as other:
        text = (
            f"the state was taken with order '{state['order']}', and this loader has order "
            f"'{other.state_dict()['order']}'; give the loader the same shuffle=, sampler= and "
            "weights; or load it with strict=False, which begins epoch 0 anew"
        )
        with pytest.raises(ringfeed.StateError) as e:
            other.load_state_dict(state)
        assert str(e.value) == text
    with loader() as one:
        beyond = len(one) + 1
        text = f"the state is at sample {beyond} of an epoch of {len(one)}; it was changed since"
        with pytest.raises(ringfeed.StateError, match=text):
            one.load_state_dict({**state, "samples": beyond})


def test_a_dataset_that_changes_is_told() -> None:
    """Where its hooks make it another length than the lengths are of, by the next epoch."""

    class Grows(Texts):
        """Has a sample more in each epoch."""

        length = 203

        def __len__(self) -> int:
            return self.length

        def on_epoch_end(self) -> None:
            self.length += 1

    text = "Buckets has 203 lengths, but the dataset has 204 samples"
    with (
        ringfeed.Loader(Grows(), batch_sampler=BUCKETS, workers=0) as made,
        pytest.raises(ValueError, match=text),
    ):
        batches(made)


def test_failed_samples_are_left_out() -> None:
    """As of any list."""

    class Fails(Texts):
        """One sample cannot be read."""

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 17:
                raise KeyError(index)
            return super().__getitem__(index)

    with ringfeed.Loader(Fails(), batch_sampler=BUCKETS, workers=0, on_error="skip") as made:
        assert sorted(chain(*batches(made))) == [number for number in range(203) if number != 17]
