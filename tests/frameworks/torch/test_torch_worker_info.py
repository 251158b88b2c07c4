"""torch's own get_worker_info() in the datasets of a plain `Loader`."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")
sets = torch.utils.data
worker_info = importlib.import_module("ringfeed.datasets.worker_info")
rng = importlib.import_module("ringfeed.orders.rng")

pytestmark = pytest.mark.usefixtures("nothing_left")
SPEC = (ringfeed.Array((), "int64"), ringfeed.Array((), "int64"), ringfeed.Array((), "bool"))


def asked() -> tuple[int, int, bool]:
    """Return what torch says of this worker, and whether it makes batches in memory of its own."""
    info = sets.get_worker_info()
    assert type(info.dataset).__name__ in ("Asking", "Streaming")
    shared = sets.default_collate([torch.ones(2), torch.ones(2)]).is_shared()
    assert sets.get_worker_info() is info
    return info.id, info.num_workers, shared


class Asking(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Samples that say which worker made them."""

    def __init__(self, length: int = 64) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int, bool]:
        return asked()


class Streaming(sets.IterableDataset):  # type: ignore[misc]
    """The same of an iterable."""

    def __iter__(self) -> Any:
        return (asked() for _ in range(8))


def test_samples_know_their_worker() -> None:
    """Of several; with a batch collated in plain memory, since it is copied into a slot next."""
    with ringfeed.Loader(Asking(), batch_size=4, spec=SPEC, workers=2) as loader:
        batches = [[leaf.tolist() for leaf in batch] for batch in loader]
    assert {number for numbers, _, _ in batches for number in numbers} <= {0, 1}
    assert all(counts == [2] * 4 and shared == [False] * 4 for _, counts, shared in batches)


WAYS: dict[str, dict[str, Any]] = {
    "workers that are threads": {"workers": 2, "backend": "thread"},
    "threads of such workers": {"workers": 2, "backend": "thread", "concurrency": 8},
    "threads of a process": {"workers": 1, "concurrency": 8},
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_know_their_worker_in_each_thread(way: str) -> None:
    """Also while another thread collates; and the program itself is none."""
    how = WAYS[way]
    with ringfeed.Loader(Asking(2000), batch_size=8, spec=SPEC, **how) as loader:
        for numbers, counts, shared in loader:
            assert {*numbers.tolist()} <= {*range(how["workers"])}
            assert {*counts.tolist()} == {how["workers"]}
            assert not shared.any()
    assert sets.get_worker_info() is None


def test_torchs_own_workers_have_what_torch_says() -> None:
    """Also where threads of this program have been workers."""
    here: dict[str, Any] = {"workers": 1, "backend": "thread", "spec": SPEC}
    with ringfeed.Loader(Asking(8), batch_size=4, **here) as loader:
        assert [batch[1].tolist() for batch in loader] == [[1] * 4] * 2
    own = sets.DataLoader(Asking(8), batch_size=4, num_workers=2, multiprocessing_context="fork")
    batches = [*own]
    assert [batch[0].tolist() for batch in batches] == [[0] * 4, [1] * 4]
    assert all(batch[2].all() and batch[0].is_shared() for batch in batches)


def test_one_worker_reads_all_of_an_iterable() -> None:
    """It must not leave out what other workers would read; a warning names the idle ones."""
    with pytest.warns(UserWarning, match="one worker reads an iterable") as told:
        loader = ringfeed.Loader(Streaming(), batch_size=4, spec=SPEC, workers=3)
    assert str(told[0].message) == (
        "workers=3, but one worker reads an iterable, and no other is started; have several side "
        "by side by ringfeed.datasets.Interleave of its parts, or a copy in each worker by "
        "ringfeed.torch.DataLoader"
    )
    with loader:
        assert [[leaf.tolist() for leaf in batch] for batch in loader] == [
            [[0] * 4, [1] * 4, [False] * 4]
        ] * 2


def test_a_dataset_that_is_sent_again_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker that never imports torch, only the newest waits for it."""
    waiting: list[Any] = []
    monkeypatch.setattr(worker_info, "when_torch_is_here", waiting.append)
    monkeypatch.setattr(worker_info.Newest, "told", None)
    monkeypatch.setattr(worker_info.Newest, "is_waited_for", False)
    for number in range(5):
        worker_info.tell_torch(number, 9, 1, object())
    assert waiting == [worker_info._tell]
    assert worker_info.Newest.told["id"] == 4
