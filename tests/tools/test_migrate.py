"""`ringfeed migrate`: what a script has to change, as a diff; what is not certainly right is left alone, with a reason."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import foreign
from ringfeed.tools.main import main

libcst = pytest.importorskip("libcst")
from ringfeed.tools.migrate import migrate, rewritten  # noqa: E402 - it needs libcst

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.once
SCRIPTS = {
    name: text
    for scripts in (*foreign.FRAMEWORKS.values(), foreign.OTHERS)
    for name, text in scripts.items()
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_changed_or_left_alone(name: str) -> None:
    """Each use has a line; a script that is left alone has a reason, and no diff."""
    diff, lines = migrate(SCRIPTS[name], "train.py")
    assert lines
    assert bool(diff) == (name not in foreign.LEFT)
    assert name not in foreign.LEFT or all("is left alone: " in line for line in lines)
    compile(rewritten(SCRIPTS[name]).changed(), "train.py", "exec")


@pytest.mark.long
@pytest.mark.parametrize(("framework", "package"), [("torch", "torch"), ("keras", "keras"), ("tf.data", "tensorflow"), ("grain", "grain")])  # fmt: skip
def test_the_batches_are_equal(framework: str, package: str) -> None:
    """Each script of a framework runs as it is and migrated, and has the same batches; the order of a shuffled one is another."""
    pytest.importorskip(package)
    done = subprocess.run([sys.executable, foreign.__file__, framework], capture_output=True, text=True, timeout=280, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Mapping[str, list[list[object]]] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == foreign.FRAMEWORKS[framework].keys()
    for name, (before, *after) in found.items():
        assert before
        assert len(after) == (name not in foreign.LEFT), name
        if name in foreign.SHUFFLED:
            assert _together(before) == _together(after[0])
        elif after:
            assert after[0] == before, name


def _together(batches: list[object]) -> list[object]:
    """The sizes and dtypes of batches, and all of their numbers."""
    sizes, dtypes, numbers = zip(*batches, strict=True)  # type: ignore[call-overload]
    return [sizes, dtypes, sorted(itertools.chain(*numbers))]


def test_the_diff(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is on standard output, for `patch`; the lines on each use are on standard error."""
    path = tmp_path / "train.py"
    path.write_text(
        "from torch.utils.data import DataLoader, Dataset as Base\n\nDataLoader(data, num_workers=4)\n"
    )
    assert main(["migrate", str(path)]) == 0
    assert capsys.readouterr() == (
        f"""--- {path}
+++ {path}
@@ -1,3 +1,4 @@
-from torch.utils.data import DataLoader, Dataset as Base
+from torch.utils.data import Dataset as Base
+from ringfeed.torch import DataLoader
\x20
 DataLoader(data, num_workers=4)
""",
        f"{path}:3: DataLoader: random numbers depend on the sample, no longer on the worker (docs/torch.md)\n",
    )


def _torch(text: str) -> str:
    return f"from torch.utils.data import DataLoader\n{text}\n"


def _generator(
    body: str,
    call: str = "gen, output_signature=tf.TensorSpec((), tf.int32)",
    after: str = ".batch(4)",
) -> str:
    lines = "\n    ".join(["def gen():", *body.splitlines()])
    return f"import tensorflow as tf, numpy as np\n{lines}\nds = tf.data.Dataset.from_generator({call}){after}\n"


def _grain(
    sampler: str = "num_epochs=1", operations: str = "grain.Batch(4)", more: str = ""
) -> str:
    order = f"grain.IndexSampler(num_records=len(rows), {sampler})"
    return f"import grain\nl = grain.DataLoader(data_source=rows, sampler={order}, operations=[{operations}]{more})\n"


def _chain(steps: str) -> str:
    return f"import grain\nd = grain.MapDataset.source(rows){steps}\n"


GENERATOR, LOADER, CHAIN = (
    "tensorflow.data.Dataset.from_generator",
    "grain.DataLoader",
    "grain.MapDataset.source",
)
YIELDS = "yield from range(4)"
REASONS = {
    "import torch_geometric.loader as g\ng.DataLoader(x)\n": (2, "torch_geometric.loader.DataLoader is left alone: it is a class of its own"),
    _torch("class Mine(DataLoader):\n    pass"): (2, "torch.utils.data.DataLoader is left alone: torch's class, of which ringfeed's is derived, stays here"),
    "import keras\nclass B(keras.utils.PyDataset):\n    pass\nmodel.fit(B(), workers=4)\n": (4, "PyDataset is left alone: these are arguments of Keras 2; Keras 3 has them in the PyDataset"),
    _generator(YIELDS, "gen, tf.int32"): (4, f"{GENERATOR} is left alone: give output_signature=, which says shapes and dtypes, and no args="),
    _generator(YIELDS, "gen, args=(1,), output_signature=s"): (4, f"{GENERATOR} is left alone: give output_signature=, which says shapes and dtypes, and no args="),
    _generator(YIELDS, "gen, output_signature=tf.TensorSpec((None,), tf.int32)"): (4, f"{GENERATOR} is left alone: its elements differ in shape, or are texts (docs/forms.md)"),
    _generator(YIELDS, "gen, output_signature=tf.TensorSpec((), tf.string)"): (4, f"{GENERATOR} is left alone: its elements differ in shape, or are texts (docs/forms.md)"),
    _generator(YIELDS, "gen, output_signature=elsewhere"): (4, f"{GENERATOR} is left alone: elsewhere is not assigned once"),
    _generator(YIELDS, "other.gen, output_signature=tf.TensorSpec((), tf.int32)"): (4, f"{GENERATOR} is left alone: other.gen is no function that this script has once"),
    _generator(YIELDS, after=".shuffle(4).batch(2)"): (4, f"{GENERATOR} is left alone: a batch() has to follow, as a loader makes batches"),
    _generator(YIELDS, after=".batch(4, num_parallel_calls=2)"): (4, f"{GENERATOR} is left alone: the argument num_parallel_calls=2 is not known here"),
    _generator("yield np.random.rand()"): (4, f"{GENERATOR} is left alone: gen() has 'random', which may be of this process alone"),
    _generator("global count\ncount += 1\nyield count"): (6, f"{GENERATOR} is left alone: gen() has 'global', which may be of this process alone"),
    _generator("yield tf.constant(1)"): (4, f"{GENERATOR} is left alone: gen() calls a function of tensorflow, which may depend on the process"),
    _generator("yield draw()") + "def draw():\n    return np.random.rand()\n": (4, f"{GENERATOR} is left alone: draw() has 'random', which may be of this process alone"),
    _grain("num_epochs=2"): (2, f"{LOADER} is left alone: a loader's epoch is all records: num_records=len(source), num_epochs=1, NoSharding()"),
    _grain("num_epochs=1, shard_options=grain.ShardByJaxProcess()"): (2, f"{LOADER} is left alone: a loader's epoch is all records: num_records=len(source), num_epochs=1, NoSharding()"),
    _grain(operations="Decode(), Crop(), grain.Batch(4)"): (2, f"{LOADER} is left alone: give one function for all maps, and a seed of the order"),
    _grain(operations="Decode(), grain.Batch(4)"): (2, f"{LOADER} is left alone: Decode() is of no class with map() in this script"),
    _grain(operations="Decode()"): (2, f"{LOADER} is left alone: a batch() has to follow, as a loader makes batches"),
    _grain("num_epochs=1, shuffle=True"): (2, f"{LOADER} is left alone: give one function for all maps, and a seed of the order"),
    _grain("num_epochs=1, shuffle=args.shuffle, seed=0"): (2, f"{LOADER} is left alone: shuffle=args.shuffle is known only when it runs"),
    _grain(more=", **settings"): (2, f"{LOADER} is left alone: the argument **settings is not known here"),
    _grain().replace("data_source=rows, ", ""): (2, f"{LOADER} is left alone: 'data_source' is not given"),
    "import grain\ndef make(sampler):\n    return grain.DataLoader(data_source=r, sampler=sampler, operations=o)\nsampler = grain.IndexSampler(len(r), num_epochs=1)\n": (3, f"{LOADER} is left alone: sampler is not assigned once"),
    _chain(".repeat(2).batch(4)"): (2, f"{CHAIN} is left alone: a loader has no place for this .repeat()"),
    _chain(".batch(4).map(f)"): (2, f"{CHAIN} is left alone: a loader has no place for this .map()"),
    _chain(".map(f)"): (2, f"{CHAIN} is left alone: a batch() has to follow, as a loader makes batches"),
    _chain(".shuffle().batch(2)"): (2, f"{CHAIN} is left alone: 'seed' is not given"),
    "import grain\nd = grain.MapDataset.range(8).batch(2)\n": (2, f"{CHAIN} is left alone: give the numbers as a source: grain.MapDataset.source(range(...))"),
}  # fmt: skip


@pytest.mark.parametrize("text", REASONS)
def test_a_use_is_left_alone(text: str) -> None:
    """What is not known is named with its line, and nothing is changed."""
    line, reason = REASONS[text]
    assert migrate(text, "train.py") == ("", [f"train.py:{line}: {reason}\n"])


CHANGES = {
    # A name of the script's own is none of torch's.
    "def f(DataLoader):\n    return DataLoader(1)\n": "def f(DataLoader):\n    return DataLoader(1)\n",
    # The import comes before the first use, and behind a docstring and the future.
    '"""Doc."""\nfrom __future__ import annotations\nimport torch\nl = torch.utils.data.DataLoader(x)\nimport json\n': '"""Doc."""\nfrom __future__ import annotations\nimport torch\nimport ringfeed.torch\nl = ringfeed.torch.DataLoader(x)\nimport json\n',
    # An import in a function stays there.
    "def f():\n    from torch.utils.data import DataLoader, Subset\n    return DataLoader(x)\n": "def f():\n    from torch.utils.data import Subset\n    from ringfeed.torch import DataLoader\n    return DataLoader(x)\n",
    # Where torch's class is needed, too, the calls alone are changed.
    _torch("l = DataLoader(x)\nassert isinstance(l, DataLoader)"): "from torch.utils.data import DataLoader\nimport ringfeed.torch\nl = ringfeed.torch.DataLoader(x)\nassert isinstance(l, DataLoader)\n",
    # Names outside ASCII are counted in bytes.
    "import torch\nnaïve = 'ü'; l = torch.utils.data.DataLoader(naïve)  # ä\n": "import torch\nimport ringfeed.torch\nnaïve = 'ü'; l = ringfeed.torch.DataLoader(naïve)  # ä\n",
    # With tf_keras, fit has these arguments.
    "import tf_keras\nclass B(tf_keras.utils.Sequence):\n    pass\nm.fit(B(), workers=4)\n": "import tf_keras\nimport ringfeed.keras\n\nringfeed.keras.install()\nclass B(tf_keras.utils.Sequence):\n    pass\nm.fit(B(), workers=4)\n",
    "import keras, ringfeed.keras\nringfeed.keras.install()\nclass B(keras.utils.PyDataset):\n    pass\n": "import keras, ringfeed.keras\nringfeed.keras.install()\nclass B(keras.utils.PyDataset):\n    pass\n",
    _grain("num_epochs=1, shuffle=True, seed=3", more=", worker_count=4"): "import grain\nimport ringfeed\nl = ringfeed.Loader(rows, batch_size=4, shuffle=True, seed=3, workers=4)\n",
    _chain(".batch(4).to_iter_dataset(grain.ReadOptions(4)).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))"): "import grain\nimport ringfeed\nd = ringfeed.Loader(rows, batch_size=4, workers=2)\n",
}  # fmt: skip


@pytest.mark.parametrize("text", CHANGES)
def test_what_is_written(text: str) -> None:
    """The whole script."""
    assert rewritten(text).changed() == CHANGES[text]


def test_a_script_without_a_loader(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and nothing is printed; - is standard input."""
    stdin = io.StringIO("print(1)\n")
    stdin.name = "<stdin>"
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["migrate", "-"]) == 0
    assert capsys.readouterr() == ("", "<stdin>: it uses no loader that is known here\n")


def test_no_python(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A line and a status of its own."""
    path = tmp_path / "train.py"
    path.write_text("loader = (\n")
    assert main(["migrate", str(path)]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"ringfeed migrate: {path}: line ")


def test_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A line and a status of its own."""
    path = tmp_path / "train.py"
    assert main(["migrate", str(path)]) == 2
    line = f"ringfeed migrate: {path}: [Errno 2] No such file or directory: '{path}'\n"
    assert capsys.readouterr() == ("", line)


def test_no_libcst() -> None:
    """The error names what to install."""
    code = "import sys; sys.modules['libcst'] = None; from ringfeed.tools.main import main; sys.exit(main(['migrate', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "ringfeed migrate: scripts are read by the package libcst, which is missing: pip install 'ringfeed[migrate]'\n"
    )
