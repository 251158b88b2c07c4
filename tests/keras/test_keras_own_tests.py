"""Keras' own tests of its data adapters, from its wheel, pass under `ringfeed.keras.install`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ADAPTERS = Path(keras.__file__).parent / "src" / "trainers" / "data_adapters"
FILES = [ADAPTERS / "py_dataset_adapter_test.py", ADAPTERS.parent / "epoch_iterator_test.py"]
if all(
    importlib.util.find_spec(name) for name in ("jax", "torch", "scipy")
):  # it takes more of them than their names
    FILES.append(ADAPTERS / "generator_data_adapter_test.py")
# Most of it goes into worker processes that import every framework, as the tests' file does.
LIMIT_S = 900


@pytest.mark.long
@pytest.mark.skipif(
    not all(file.exists() for file in FILES), reason="this Keras comes without its tests"
)
@pytest.mark.timeout(LIMIT_S + 60)
def test_keras_own_tests_pass(tmp_path: Path) -> None:
    """None fails, and the datasets that they make run over the ring wherever they give arrays."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "keras_own",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
    ]
    command += ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), *map(str, FILES)]
    here = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path])}
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=here,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    passed = re.search(r"^(\d+) passed", ended.stdout, re.MULTILINE)
    assert passed is not None, ended.stdout
    assert "failed" not in ended.stdout.splitlines()[-1]
    assert int(passed[1]) >= 20
    fed = re.search(
        r"^datasets over ringfeed: (\d+), left to Keras: (\d+)$", ended.stdout, re.MULTILINE
    )
    assert fed is not None, ended.stdout
    assert int(fed[1]) >= 10
