"""What `remote.py` measures: rates, times, CPU and memory of remote workers, as ratios within one run."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cluster
from harness.proctree import memory_of
from studies.cluster_size import Costs, Setting, simulate
from studies.remote_training import Training, run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SAMPLE_S, SAMPLE_BYTES = 0.02, 12_000
SCALES = {
    1: 0.95,
    4: 0.95,
    16: 0.95,
    64: 0.80,
}  # actors, and of what they could give, what is promised
BATCHES_MS = {0.6: 1.3, 2.4: 3.5, 9.6: 8.5, 38.5: 50.0}  # MB of a batch, and what is promised
BRIDGE_S_PER_GB = {9.6: 0.7, 38.5: 0.3}
ROOMY = 600_000_000  # bytes of an object store
LINK_GBIT = 1.0
FIRST_S = 0.1  # until the first batch of another epoch
LINKS = {1: 0.93, 2: 1.80}  # nodes, and of one link, what is promised
NEAR = 0.10  # of a real run, how far the simulator may be off
STEPS = {4: ((4, 0.05),)}  # of actors, rows and steps that are tried besides
RAY_DATA = Path(__file__).with_name("remote_ray_data.py")


def scale(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Samples that wait for 20 ms, by more and more actors."""
    kept, shares = True, []
    with cluster.start(2, cpus=8) as made:
        for actors, promised in list(SCALES.items())[: 3 if chosen.quick else None]:
            rows = 32 * max(1, actors // 16)
            place = {
                "address": made.address,
                "actors": actors,
                "batch_size": rows,
                "count": 1280 * max(1, actors // 4),
            }
            found = run(
                **place, sample_s=SAMPLE_S, size=SAMPLE_BYTES, seconds=5.0 if chosen.quick else 15.0
            )
            share = found["rate"] / (actors / SAMPLE_S)
            kept &= share >= promised
            shares.append(f"{actors}: {share:.0%}")
            text = f"{actors} actors: {found['rate']:,.0f} samples/s, {share:.1%} of linear"
            yield {
                "case": actors,
                "share": share,
                "found": found,
                "text": f"{text} (promised {promised:.0%})",
            }
    yield {"case": "all", "kept": kept, "text": f"of linear, by actors: {', '.join(shares)}"}


def sizes(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Whole batches without any work, by two actors of another node."""
    kept, times = True, []
    with cluster.start(0) as made:
        made.add(0, store=ROOMY)
        made.add(4, store=ROOMY)
        for megabytes, promised_ms in BATCHES_MS.items():
            place = {
                "address": made.address,
                "actors": 2,
                "size": int(megabytes * 1e6),
                "whole": True,
                "num_cpus": 1,
            }
            found = run(**place, count=4000, slots=6, seconds=4.0 if chosen.quick else 10.0)
            batch_ms = 1e3 * found["took_s"] / found["batches"]
            s_per_gb = found["bridge_cpu_s"] / (found["bytes"] / 1e9)
            most = BRIDGE_S_PER_GB.get(megabytes, math.inf)
            kept &= batch_ms <= promised_ms and s_per_gb <= most
            times.append(f"{megabytes} MB {batch_ms:.1f} ms {s_per_gb:.2f} s/GB")
            text = (
                f"{megabytes} MB: {batch_ms:.2f} ms (promised {promised_ms:g}), bridge "
                f"{s_per_gb:.2f} s/GB"
            )
            yield {
                "case": megabytes,
                "batch_ms": batch_ms,
                "s_per_gb": s_per_gb,
                "found": found,
                "text": text,
            }
    yield {"case": "all", "kept": kept, "text": "; ".join(times)}


def link(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Batches of 2.4 MB without any work, by one node and two, each behind a limited link.

    Then float32 of uint8.
    """
    kept, shares = True, []
    seconds = 4.0 if chosen.quick else 10.0
    for nodes, promised in LINKS.items():
        with cluster.start(0, network=True) as made:
            made.add(0)
            for _ in range(nodes):
                made.add(4).limit(LINK_GBIT)
            place = {
                "address": made.address,
                "actors": 2 * nodes,
                "num_cpus": 1,
                "slots": 12,
                "seconds": seconds,
            }
            found = run(**place, whole=True, count=4000, size=2_400_000)
            share = found["bytes"] * 8e-9 / found["took_s"] / LINK_GBIT
            kept &= share >= promised
            shares.append(f"{nodes} nodes {share:.0%}")
            text = f"{nodes} nodes: {share:.1%} of {LINK_GBIT:g} Gbit/s (promised {promised:.0%})"
            yield {"case": nodes, "share": share, "found": found, "text": text}
            if nodes == 1:
                pixels = {**place, "count": 6400, "batch_size": 16}
                whole = run(**pixels, size=600_000, floats=True)
                scaled = run(**pixels, size=150_000, scaled=True)
                times = scaled["samples"] / scaled["took_s"] / (whole["samples"] / whole["took_s"])
                shares.append(f"uint8 with scale= {times:.1f} times float32")
                yield {
                    "case": "scaled",
                    "times": times,
                    "found": [whole, scaled],
                    "text": shares[-1],
                }
    yield {"case": "all", "kept": kept, "text": "; ".join(shares)}


def against(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The same work by Ray Data's `iter_batches`, in turns."""
    if missing := [
        name for name in ("pyarrow", "pandas", "fsspec") if importlib.util.find_spec(name) is None
    ]:
        yield {
            "case": "all",
            "text": f"left out: Ray Data needs {', '.join(missing)}; pip install 'ray[data]'",
        }
        return
    actors = 4 if chosen.quick else 16
    with cluster.start(2, cpus=8) as made:
        terms = {"address": made.address, "actors": actors, "count": 1600 if chosen.quick else 6400}
        ours = run(**terms, sample_s=SAMPLE_S, size=SAMPLE_BYTES, seconds=10.0)
        command = [
            sys.executable,
            str(RAY_DATA),
            json.dumps({**terms, "sample_s": SAMPLE_S, "size": SAMPLE_BYTES}),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=400)  # noqa: S603 - ours
        theirs = json.loads(done.stdout.splitlines()[-1])
    first_s = max([0.0, *(took_s for _, took_s in ours["pauses"])])
    cpu_s = ours["bridge_cpu_s"] / ours["samples"]
    text = (
        f"longest pause of epochs {first_s:.2f} s, Ray Data's first batch of epoch 2 "
        f"{theirs['first_s']:.2f} s; driver CPU a sample {1e6 * cpu_s:.0f} us, "
        f"{1e6 * theirs['cpu_s']:.0f} us; ahead at most the plan's {ours['plan_bytes'] / 1e6:.0f} "
        "MB"
    )
    kept = first_s < FIRST_S and cpu_s <= theirs["cpu_s"] / 2
    yield {"case": "all", "ours": ours, "theirs": theirs, "kept": kept, "text": text}


def memory(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Batches of 9.6 MB, ten epochs of them over stores of 80 MB."""
    with cluster.start(2, cpus=4) as made:
        place = {
            "address": made.address,
            "actors": 4,
            "size": 9_600_000,
            "whole": True,
            "slots": 6,
            "stops": True,
        }
        training = Training(**place, count=30 if chosen.quick else 100)
        try:
            most = 0
            until_s = time.monotonic() + (10.0 if chosen.quick else 60.0)
            while time.monotonic() < until_s:
                most = max(
                    most, sum(sum(memory_of(pid)) for pid in [training.pid(), *training.bridges()])
                )
                time.sleep(0.5)
            found = training.result()
        finally:
            training.end()
        spilled = [str(path) for path in made.spilled]
    text = (
        f"{len(spilled)} objects spilled; trainer and bridge {most / 1e6:.0f} MB with their "
        f"interpreters, plan {found['plan_bytes'] / 1e6:.0f} MB"
    )
    yield {
        "case": "all",
        "kept": not spilled,
        "most_bytes": most,
        "spilled": spilled,
        "found": found,
        "text": text,
    }


# ---- the simulator ----


def calibrate(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What calls cost on this cluster: of a bridge by its CPU, of an actor by what is left of its time."""
    seconds = 3.0 if chosen.quick else 8.0
    with cluster.start(0) as made:
        made.add(0)
        made.add(4)
        place = {
            "address": made.address,
            "num_cpus": 1,
            "whole": True,
            "count": 20_000,
            "slots": 8,
            "seconds": seconds,
        }
        small = run(**place, actors=1, size=1000)
        inline = run(**place, actors=1, size=4_000_000)
        plasma = run(**place, actors=1, size=16_000_000)
        call_s = small["bridge_cpu_s"] / small["batches"]
        found = Costs(
            call_s=call_s,
            inline_s_per_gb=_s_per_gb(inline, call_s),
            plasma_s_per_gb=_s_per_gb(plasma, call_s),
            actor_call_s=small["took_s"] / small["batches"],
            start_s=small["there_s"],
        )
    yield {"case": "all", "costs": found._asdict(), "text": json.dumps(found._asdict())}


def _s_per_gb(found: dict[str, Any], call_s: float) -> float:
    return max(0.0, float(found["bridge_cpu_s"] - found["batches"] * call_s)) / (
        found["bytes"] / 1e9
    )


def simulate_check(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Real runs beside the simulator, told the same: it shares this machine's cores among all."""
    costs = next(calibrate(chosen))["costs"]
    far = []
    with cluster.start(2, cpus=8) as made:
        for actors in (1, 4, 16):
            for rows, step_s in ((1, 0.0), (4, 0.0), (16, 0.0), *STEPS.get(actors, ())):
                answer = _checked(made.address, actors, rows, step_s, Costs(**costs))
                far.append(answer["off"])
                yield answer
    worst = max(far)
    text = f"{len(far)} runs, the simulator is off by {worst:.0%} at most (promised {NEAR:.0%})"
    yield {"case": "all", "kept": worst <= NEAR, "text": text}


def _checked(address: str, actors: int, rows: int, step_s: float, costs: Costs) -> dict[str, Any]:
    """Run samples of 20 ms as whole batches of so many: what one ticket is."""
    work_s, size = rows * SAMPLE_S, rows * SAMPLE_BYTES
    slots = 2 * actors + 2
    terms = {
        "address": address,
        "actors": actors,
        "whole": True,
        "sample_s": work_s,
        "size": size,
        "slots": slots,
    }
    found = run(**terms, step_s=step_s, count=200 * actors, seconds=12.0)
    real = found["rate"]
    setting = Setting(
        actors, work_s, size, batch_size=1, slots=slots, step_s=step_s, actors_per_node=8, cores=2
    )
    told = simulate(setting, costs, batches=max(200, 40 * actors))
    off = abs(told / real - 1)
    name = f"{actors} actors, {rows} rows a ticket{f', steps of {step_s:g} s' if step_s else ''}"
    text = f"{name}: real {rows * real:,.1f}, simulated {rows * told:,.1f} samples/s ({off:.0%})"
    return {"case": name, "real": real, "told": told, "off": off, "found": found, "text": text}
