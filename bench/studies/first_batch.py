"""How long the first batch of a loader takes, by start method, beside torch's DataLoader, which forks.

    python bench/studies/first_batch.py            # some minutes; one JSON line a repetition
    python bench/studies/first_batch.py --quick    # one case, once
    python bench/studies/first_batch.py --workers 16 --cases script --repetitions 5

Each repetition is a fresh process; the contenders take turns. It imports what its dataset needs, and is timed from the
loader's construction to its first batch. `first_s` is the process's first loader, `second_s` another one later on,
`import_s` the import of the loader's class ahead of both. All modules are compiled before, as installed ones are.
`cpu_s` is what the process and all below it have computed for the first; `memory_bytes` the memory of all processes
below it, without shared memory; a page that several share is divided among them. The last lines give the medians
as a table.

    array         two arrays
    script        a class of the script itself
    pictures      a class of a module that imports NumPy and Pillow
    torch         a torch Dataset of a module that imports torch
    tensorflow    a class of a module that imports TensorFlow
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
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness import proctree
from harness.machine import commit, machine, versions

CONTENDERS = ("spawn", "forkserver", "fork", "torch fork")
TIMEOUT_S = 300

IMPORTS = {
    "array": "",
    "script": "",
    "pictures": "from PIL import Image\n",
    "torch": "import torch\n",
    "tensorflow": "import tensorflow as tf\n",
}
CLASS = """import numpy as np
{imports}class Rows({base}):
    def __init__(self, values): self.values = values
    def __len__(self): return len(self.values)
    def __getitem__(self, index): return self.values[index], np.int64(index)
"""


def source_of(case: str) -> str:
    """The text of the dataset's class in one case."""
    return CLASS.format(imports=IMPORTS[case], base="torch.utils.data.Dataset" if case == "torch" else "object")


def dataset_of(case: str, contender: str) -> Any:
    """Make the dataset, importing what it needs; each case has a module of its own, but for those of the script."""
    import numpy as np  # noqa: PLC0415 - a repetition's process only

    values = np.zeros((512, 64), np.float32)
    if case == "array":
        if contender != "torch fork":
            return values, np.arange(512)
        import torch  # noqa: PLC0415 - as above

        return torch.utils.data.TensorDataset(torch.from_numpy(values), torch.arange(512))
    if case == "script":
        exec(source_of(case), vars(sys.modules["__main__"]))  # noqa: S102 - the text above
        return vars(sys.modules["__main__"])["Rows"](values)
    return __import__(f"rows_of_{case}").Rows(values)


def first_batch(dataset: Any, contender: str, workers: int) -> tuple[float, Any]:
    """Seconds to the first batch of a new loader, and what keeps its workers."""
    if contender == "torch fork":
        from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

        began_s = time.perf_counter()
        batches = iter(DataLoader(dataset, batch_size=32, num_workers=workers))
        next(batches)
        return time.perf_counter() - began_s, batches
    import ringfeed  # noqa: PLC0415 - as above

    began_s = time.perf_counter()
    loader = ringfeed.Loader(dataset, batch_size=32, workers=workers, start_method=contender)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    return time.perf_counter() - began_s, (batches, loader)


def repetition(case: str, contender: str, workers: int) -> dict[str, float]:
    """The figures of this process."""
    dataset = dataset_of(case, contender)
    began_s = time.perf_counter()
    if contender == "torch fork":
        import torch.utils.data  # noqa: F401, PLC0415 - not in the time
    else:
        from ringfeed import Loader  # noqa: F401, PLC0415 - likewise
    import_s = time.perf_counter() - began_s
    before = proctree.usage_of_tree()
    first_s, kept = first_batch(dataset, contender, workers)
    cpu_s = proctree.usage_of_tree().since(before).cpu_s
    memory = sum(proctree.memory_of(pid).own for pid in proctree.descendants(os.getpid()))
    figures = {"import_s": import_s, "first_s": first_s, "cpu_s": cpu_s, "memory_bytes": memory}
    del kept
    figures["second_s"], kept = first_batch(dataset, contender, workers)
    del kept
    return figures


def measure(case: str, contender: str, workers: int, folder: str) -> dict[str, Any]:
    """The figures of one fresh process, or an error in their place."""
    command = [sys.executable, __file__, "--child", case, contender, "--workers", str(workers)]
    paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    quiet = {"PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(  # noqa: S603 - the bench's own script
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | quiet, check=False
    )
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or [f"exit status {found.returncode}"])[-1]}
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


def table(rows: list[dict[str, Any]]) -> str:
    """The medians, and the first batch over torch's."""
    keys = list(dict.fromkeys((row["case"], row["contender"]) for row in rows if "error" not in row))
    names = ("import_s", "first_s", "second_s", "cpu_s", "memory_bytes")
    medians = {
        key: {
            name: median(row[name] for row in rows if (row["case"], row["contender"]) == key and name in row)
            for name in names
        }
        for key in keys
    }
    lines = [
        "| dataset | started by | import | first batch | over torch's | a later loader's | CPU | memory of workers |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (case, contender), found in medians.items():
        torch = medians.get((case, "torch fork"))
        ratio = f"{found['first_s'] / torch['first_s']:.1f}x" if torch else "-"
        cells = (f"{found['import_s'] * 1e3:.0f} ms", f"{found['first_s'] * 1e3:.0f} ms", ratio)
        cells += (f"{found['second_s'] * 1e3:.0f} ms",)
        cells += (f"{found['cpu_s'] * 1e3:.0f} ms", f"{found['memory_bytes'] / 1e6:.0f} MB")
        lines.append(f"| {case} | {contender} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(chosen: argparse.Namespace) -> None:
    """Print one line a repetition, and the table."""
    rows: list[dict[str, Any]] = []
    facts = {
        "workers": chosen.workers,
        "machine": machine(),
        "versions": versions((("torch", ""), ("tensorflow", ""))),
        "commit": commit(),
    }
    with tempfile.TemporaryDirectory() as folder:
        for case in IMPORTS:
            Path(folder, f"rows_of_{case}.py").write_text(source_of(case), encoding="utf-8")
        for place in (folder, *find_spec("ringfeed").submodule_search_locations):
            compileall.compile_dir(place, quiet=2)  # else each process compiles what PYTHONDONTWRITEBYTECODE kept
        for number in range(chosen.repetitions):
            for case in chosen.cases:
                for contender in chosen.contenders:
                    found = measure(case, contender, chosen.workers, folder)
                    rows.append({"case": case, "contender": contender, "repetition": number, **found})
                    line = json.dumps({**rows[-1], **facts})
                    print(line, flush=True)
                    if chosen.output is not None:
                        with chosen.output.open("a", encoding="utf-8") as file:
                            file.write(line + "\n")
    print(table(rows))


def main() -> None:
    """Run the bench, or one repetition of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*IMPORTS], default=[*IMPORTS])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a file that the lines are added to")
    parser.add_argument("--quick", action="store_true", help="one case, once")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "CONTENDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(repetition(*chosen.child, chosen.workers)))
        return
    if chosen.quick:
        chosen.cases, chosen.repetitions = ["script"], 1
    run(chosen)


if __name__ == "__main__":
    main()
