"""`bench/studies/beside.py`: a short run of the training beside which others decode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"


def test_others_decode_as_much_as_a_loader_would() -> None:
    """The processes that hand nothing over are in the figures, and the losses are those of the model alone."""
    missing = [name for name in ("PIL", "jax", "keras", "sklearn", "skimage") if find_spec(name) is None]
    if missing:
        pytest.skip(f"could not import {', '.join(missing)}")
    found = {}
    for contender in ("alone", "beside"):
        command = [sys.executable, str(BENCH / "studies" / "beside.py"), "--quick", "--child", contender]
        environment = os.environ | {"KERAS_BACKEND": "jax"}
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240, env=environment)
        found[contender] = json.loads(ended.stdout.splitlines()[-1])
    assert found["beside"]["losses"][0] == found["alone"]["losses"][0]
    # Processes that decode nothing leave it within a few hundredths of the model's own.
    assert found["beside"]["cpu_s_per_batch"] > 1.15 * found["alone"]["cpu_s_per_batch"]
