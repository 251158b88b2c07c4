"""`ringfeed profile --json`: what a sample costs, for what sizes a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from ringfeed.tools.main import main
from ringfeed.tools.profile import TIMED, Profile

pytestmark = pytest.mark.once


def test_a_profile_as_json() -> None:
    """Seconds of a sample with its write, how they differ, and bytes."""
    samples = np.array([(4, 0.002, 0.001, 0.0), (2, 0.004, 0.001, 0.0)], TIMED).view(np.recarray)
    assert Profile("mine", 64, 4, 150528, samples, 0.001, "").as_json() == {
        "name": "mine",
        "batch_size": 64,
        "samples": 2,
        "sample_s": pytest.approx(0.004),
        "cv": pytest.approx(0.25),
        "cpu_s": pytest.approx(0.001),
        "sample_bytes": 150528,
    }


def test_a_profile_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """It is of loaders, and says nothing of a sample."""
    assert main(["profile", "--json", "--script", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "ringfeed profile: --json says what a sample costs: give module:name of a dataset, no "
        "loader and no --script\n"
    )
