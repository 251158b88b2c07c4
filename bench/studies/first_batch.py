"""How long the first batch of a loader takes, by start method, beside torch's DataLoader, which forks, and Grain.

    python bench/studies/first_batch.py            # some minutes; one JSON line a repetition
    python bench/studies/first_batch.py --quick    # one case, once
    python bench/studies/first_batch.py --workers 1 16 64 --cases script --repetitions 5
    python bench/studies/first_batch.py --pause 3  # the program builds its model between the loader and its first epoch

Each repetition is a fresh process; the contenders take turns. It imports what its dataset needs,
and is timed from the loader's construction to its first batch, without the pause. `first_s` is the
process's first loader, `second_s` another one, made while the first is open, `import_s` the import
of the loader's class ahead of both. "forkserver, alone" has no warm forkserver; "torch door" is
`ringfeed.torch.DataLoader`. All modules are compiled before, as installed ones are. `cpu_s` is what
the process and all below it have computed for the first; `memory_bytes` the memory of all processes
below it, without shared memory; a page that several share is divided among them. The last lines give
the medians as a table.

    array         two arrays
    script        a class of the script itself
    pictures      a class of a module that imports NumPy and Pillow
    torch         a torch Dataset of a module that imports torch, of arrays
    tensors       the same, of tensors
    transforms    the same, of tensors that it crops, flips and scales
    tensorflow    a class of a module that imports TensorFlow
    pydataset     a Keras PyDataset of such a module, whose batches are whole
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness import proctree
from harness.machine import commit, machine, versions

CONTENDERS = (
    "spawn",
    "forkserver",
    "forkserver, alone",
    "fork",
    "torch fork",
    "torch door",
    "grain",
)
ALONE = {"forkserver, alone": {"RINGFEED_WARM_S": "0"}}
TIMEOUT_S = 300

IMPORTS = {
    "array": "",
    "script": "",
    "pictures": "from PIL import Image\n",
    "torch": "import torch\n",
    "tensors": "import torch\n",
    "transforms": "import torch\n",
    "tensorflow": "import tensorflow as tf\n",
    "pydataset": "import tensorflow as tf\nimport keras\n",
}
BASES = dict.fromkeys(("torch", "tensors", "transforms"), "torch.utils.data.Dataset")
BASES["pydataset"] = "keras.utils.PyDataset"
CLASS = """import numpy as np
{imports}class Rows({base}):
    def __init__(self, values):
        super().__init__()
        self.values = values
    def __len__(self): return {length}
    def __getitem__(self, index):
        {body}
"""
BODIES = {
    "tensors": "return torch.from_numpy(self.values[index]), torch.tensor(index)",
    "transforms": """picture = torch.from_numpy(self.values[index]).reshape(1, 8, 8)
        top, left = (int(torch.randint(0, 3, ())) for _ in range(2))
        picture = picture[:, top : top + 6, left : left + 6].flip(2)
        return (picture - 0.5) / 0.25, torch.tensor(index)""",
    "pydataset": "return self.values[32 * index : 32 * index + 32], np.arange(32)",
}


def source_of(case: str) -> str:
    """The text of the dataset's class in one case."""
    length = "len(self.values) // 32" if case == "pydataset" else "len(self.values)"
    body = BODIES.get(case, "return self.values[index], np.int64(index)")
    return CLASS.format(
        imports=IMPORTS[case], base=BASES.get(case, "object"), length=length, body=body
    )


def dataset_of(case: str, contender: str) -> Any:
    """Make the dataset, importing what it needs.

    Each case has a module of its own, but for those of the script.
    """
    import numpy as np  # noqa: PLC0415 - a repetition's process only

    values = np.zeros((512, 64), np.float32)
    if case == "array":
        if contender == "grain":
            return [*zip(values, np.arange(512), strict=True)]
        if not contender.startswith("torch"):
            return values, np.arange(512)
        import torch  # noqa: PLC0415 - as above

        return torch.utils.data.TensorDataset(torch.from_numpy(values), torch.arange(512))
    if case == "script":
        exec(source_of(case), vars(sys.modules["__main__"]))  # noqa: S102 - the text above
        return vars(sys.modules["__main__"])["Rows"](values)
    return __import__(f"rows_of_{case}").Rows(values)


def first_batch(
    dataset: Any, contender: str, workers: int, size: int | None, pause_s: float
) -> tuple[float, Any]:
    """Seconds to a new loader's first batch, and what keeps its workers.

    ``size``: None where batches are whole.
    """
    loader, began_s, begin = MAKERS.get(contender, _ringfeed)(dataset, contender, workers, size)
    made_s = time.perf_counter() - began_s
    time.sleep(pause_s)
    began_s = time.perf_counter()
    batches = begin()
    next(batches)
    return made_s + time.perf_counter() - began_s, (batches, loader)


def _torch(dataset: Any, _contender: str, workers: int, size: int | None) -> Made:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    began_s = time.perf_counter()
    loader = DataLoader(dataset, batch_size=size, num_workers=workers)
    return loader, began_s, loader.__iter__


def _door(dataset: Any, _contender: str, workers: int, size: int | None) -> Made:
    from ringfeed.torch import DataLoader  # noqa: PLC0415 - as above

    began_s = time.perf_counter()
    loader = DataLoader(dataset, batch_size=size, num_workers=workers)
    return loader, began_s, loader.__iter__


def _grain(dataset: Any, _contender: str, workers: int, size: int | None) -> Made:
    import grain  # noqa: PLC0415 - as above
    from absl import flags  # noqa: PLC0415 - as above

    flags.FLAGS.mark_as_parsed()  # Grain refuses to be used before a command line was parsed
    began_s = time.perf_counter()
    source = grain.MapDataset.source(dataset)
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = (source if size is None else source.batch(size)).to_iter_dataset(reading)
    batches = batches.mp_prefetch(grain.MultiprocessingOptions(workers, 2))
    return batches, began_s, batches.__iter__


def _ringfeed(dataset: Any, contender: str, workers: int, size: int | None) -> Made:
    import ringfeed  # noqa: PLC0415 - as above

    method: Any = contender.partition(",")[0].replace("forkserver", "process")
    began_s = time.perf_counter()
    loader = ringfeed.Loader(dataset, batch_size=size, workers=workers, backend=method)
    return loader, began_s, loader.__iter__


Made = tuple[
    Any, float, Callable[[], Any]
]  # a loader, when its construction began, and what begins an epoch
MAKERS: dict[str, Callable[[Any, str, int, int | None], Made]] = {
    "torch fork": _torch,
    "torch door": _door,
    "grain": _grain,
}


def repetition(case: str, contender: str, workers: int, pause_s: float) -> dict[str, float]:
    """The figures of this process."""
    dataset = dataset_of(case, contender)
    began_s = time.perf_counter()
    if contender == "torch fork":
        import torch.utils.data  # noqa: F401, PLC0415 - not in the time
    elif contender == "torch door":
        from ringfeed.torch import DataLoader  # noqa: F401, PLC0415 - likewise
    elif contender == "grain":
        import grain  # noqa: F401, PLC0415 - likewise
    else:
        from ringfeed import Loader  # noqa: F401, PLC0415 - likewise
    import_s = time.perf_counter() - began_s
    before = proctree.usage_of_tree()
    size = None if case == "pydataset" else 32
    first_s, kept = first_batch(dataset, contender, workers, size, pause_s)
    cpu_s = proctree.usage_of_tree().since(before).cpu_s
    memory = sum(proctree.memory_of(pid).own for pid in proctree.descendants(os.getpid()))
    figures = {"import_s": import_s, "first_s": first_s, "cpu_s": cpu_s, "memory_bytes": memory}
    figures["second_s"], later = first_batch(
        dataset, contender, workers, size, pause_s
    )  # as for validation data
    del kept, later
    return figures


def measure(case: str, contender: str, workers: int, folder: str, pause_s: float) -> dict[str, Any]:
    """The figures of one fresh process, or an error in their place."""
    command = [sys.executable, __file__, "--child", case, contender, "--workers", str(workers)]
    command += ["--pause", str(pause_s)]
    paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    quiet = {
        "PYTHONPATH": paths,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }
    environment = os.environ | quiet | ALONE.get(contender, {})
    found = subprocess.run(  # noqa: S603 - the bench's own script
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    if found.returncode:
        return {
            "error": (found.stderr.strip().splitlines() or [f"exit status {found.returncode}"])[-1]
        }
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


HEADS = (
    "import",
    "first batch",
    "over torch's",
    "a later loader's",
    "over torch's",
    "CPU",
    "memory of workers",
)


def table(rows: list[dict[str, Any]]) -> str:
    """The medians, and the first batch over torch's."""
    keys = list(dict.fromkeys(map(_key, (row for row in rows if "error" not in row))))
    names = ("import_s", "first_s", "second_s", "cpu_s", "memory_bytes")
    medians = {
        key: {
            name: median(row[name] for row in rows if _key(row) == key and name in row)
            for name in names
        }
        for key in keys
    }
    lines = [
        f"| dataset | workers | started by | {' | '.join(HEADS)} |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (case, contender, workers), found in medians.items():
        torch = medians.get((case, "torch fork", workers))
        cells = [f"{found['import_s'] * 1e3:.0f} ms"]
        for name in ("first_s", "second_s"):
            cells += [
                f"{found[name] * 1e3:.0f} ms",
                f"{found[name] / torch[name]:.1f}x" if torch else "-",
            ]
        cells += [f"{found['cpu_s'] * 1e3:.0f} ms", f"{found['memory_bytes'] / 1e6:.0f} MB"]
        lines.append(f"| {case} | {workers} | {contender} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["case"], row["contender"], row["workers"]


def run(chosen: argparse.Namespace) -> None:
    """Print one line a repetition, and the table."""
    rows: list[dict[str, Any]] = []
    facts = {
        "pause_s": chosen.pause,
        "machine": machine(),
        "versions": versions((("torch", ""), ("tensorflow", ""), ("grain", ""))),
        "commit": commit(),
    }
    with tempfile.TemporaryDirectory() as folder:
        for case in IMPORTS:
            Path(folder, f"rows_of_{case}.py").write_text(source_of(case), encoding="utf-8")
        for place in (folder, *find_spec("ringfeed").submodule_search_locations):
            compileall.compile_dir(
                place, quiet=2
            )  # else each process compiles what PYTHONDONTWRITEBYTECODE kept
        turns = product(range(chosen.repetitions), chosen.workers, chosen.cases, chosen.contenders)
        for number, workers, case, contender in turns:
            found = measure(case, contender, workers, folder, chosen.pause)
            rows.append(
                {
                    "case": case,
                    "contender": contender,
                    "workers": workers,
                    "repetition": number,
                    **found,
                }
            )
            line = json.dumps({**rows[-1], **facts})
            print(line, flush=True)
            if chosen.output is not None:
                with chosen.output.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    print(table(rows))


def main() -> None:
    """Run the bench, or one repetition of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=[*IMPORTS], default=[*IMPORTS])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds between a loader and its first epoch"
    )
    parser.add_argument("--output", type=Path, help="a file that the lines are added to")
    parser.add_argument("--quick", action="store_true", help="one case, once")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "CONTENDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(repetition(*chosen.child, chosen.workers[0], chosen.pause)))
        return
    if chosen.quick:
        chosen.cases, chosen.repetitions = ["script"], 1
    run(chosen)


if __name__ == "__main__":
    main()
