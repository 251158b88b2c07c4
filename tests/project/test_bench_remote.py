"""The bench of remote workers, as far as it needs no cluster: the training that it starts, and what it makes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from studies import remote, remote_faults, remote_run, remote_speed, remote_training  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

pytestmark = [pytest.mark.once, pytest.mark.long]

SMALL = {"count": 40, "size": 100, "batch_size": 8, "hashed": True}


def test_a_training_hashes_epochs() -> None:
    """The same ones, whatever the workers; each sample once, and no Ray in its process."""
    one, two = (remote_training.run(**SMALL, local=local, epochs=(1000, 1001)) for local in (1, 2))
    assert one["hashes"] == two["hashes"]
    assert [*one["hashes"]] == ["1000", "1001"]
    assert one["samples"] == 80
    assert one["bytes"] == 8000
    assert not one["wrong"]
    assert not one["ray_here"]
    assert (
        one["hashes"]
        != remote_training.run(**{**SMALL, "size": 101}, local=1, epochs=(1000, 1001))["hashes"]
    )


def test_a_training_goes_on_until_it_is_told() -> None:
    """It ends its epoch then."""
    training = remote_training.Training(**SMALL, local=1, stops=True)
    assert training.bridges() == []
    found = training.result()
    assert found["samples"] % 40 == 0
    assert not found["wrong"]


def test_a_training_that_fails_says_why() -> None:
    """The end of its errors is in the message."""
    with pytest.raises(
        RuntimeError, match=r"(?s)^the training has ended; .*batch_size=0 must be at least 1"
    ):
        remote_training.Training(**{**SMALL, "batch_size": 0}, local=1)


@pytest.mark.parametrize(
    ("changed", "dtype"),
    [({"floats": True, "size": 400}, "float32"), ({"scaled": True}, "float32")],
)
def test_what_links_carry(changed: dict[str, Any], dtype: str) -> None:
    """Float32 that was shipped as such, or as uint8."""
    terms = remote_run.Terms(**{**SMALL, "hashed": False, "local": 1, **changed})
    with remote_run.loader_of(terms) as loader:
        values, _ = next(iter(loader))
    assert (values.shape, values.dtype) == ((8, 100), dtype)
    assert remote_run.Samples(terms).value.dtype == ("float32" if terms.floats else "uint8")


def test_pauses() -> None:
    """Long ones are told; epochs that warmed up are forgotten, and do not count."""
    reading = remote_run.Reading(remote_run.Terms(), loader=None)  # type: ignore[arg-type]
    reading.times_s = [1.0, 1.05, 3.0, 3.01, 20.0]
    pauses = reading.pauses()
    assert pauses == [(1.05, pytest.approx(1.95)), (3.01, pytest.approx(16.99))]
    reading.samples = 50
    assert reading.rate() == pytest.approx(40 / 19)
    reading.hashes = {0: "of an epoch that warmed up"}
    reading.forget()
    assert (reading.hashes, reading.pauses(), reading.rate()) == ({}, [], 0.0)


@pytest.mark.parametrize(
    ("pauses", "equal", "kept"), [([], True, True), ([3.1], True, False), ([0.2], False, False)]
)
def test_what_a_kill_has_shown(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], *, equal: bool, kept: bool
) -> None:
    """Any pause counts, whenever it was; the GCS of a cluster is killed once."""
    found = {"pauses": [(0.0, took_s) for took_s in pauses], "hashes": {"1000": "a"}}
    rounds: list[int] = []

    def round_of(_: str, often: int) -> dict[str, Any]:
        rounds.append(often)
        return {"is_right": equal, "left": False, "found": found}

    monkeypatch.setattr(remote_faults, "_round", round_of)
    answer = remote_faults._killed("gcs", 3, 3.0)
    assert (rounds, answer["kept"], answer["longest_s"]) == (
        [1, 1, 1],
        kept,
        max(pauses, default=0.0),
    )


def answers(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Answer as a question does."""
    yield {"case": 1, "text": "one: slow"}
    yield {"case": "all", "text": f"quick: {chosen.quick}", "kept": chosen.quick}


@pytest.mark.parametrize(("quick", "status"), [(True, 0), (False, 1)])
def test_each_answer_is_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    quick: bool,
    status: int,
) -> None:
    """Of the output and of the file; the last one says whether what is promised is kept."""
    monkeypatch.setitem(remote.QUESTIONS, "scale", answers)
    monkeypatch.setattr(remote.cluster, "why_not", lambda **_: "")
    out = tmp_path / "lines.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["remote.py", "--scale", "--out", str(out), *(["--quick"] if quick else [])]
    )
    assert remote.main() == status
    assert capsys.readouterr().out == f"one: slow\nquick: {quick}\n"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["case"] for line in lines] == [1, "all"]
    assert {"commit", "machine", "load", "versions"} <= lines[0].keys()
    assert lines[0]["study"] == "remote/scale"


def test_without_ray_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so."""
    monkeypatch.setattr(remote.cluster, "why_not", lambda **_: "ray is not installed")
    monkeypatch.setattr(sys, "argv", ["remote.py", "--bytes"])
    assert remote.main() == 0
    assert capsys.readouterr().out == "left out: ray is not installed\n"


def test_what_a_gigabyte_costs() -> None:
    """Without what the calls cost."""
    found = {"bridge_cpu_s": 3.0, "batches": 1000, "bytes": 4e9}
    assert remote_speed._s_per_gb(found, 0.001) == pytest.approx(0.5)
    assert remote_speed._s_per_gb(found, 0.01) == 0.0
