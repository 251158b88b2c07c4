"""`ringfeed migrate`: what a script of another loader has to change, and what stays as it is.

    text ──▶ Script: libcst, and the names of its imports ──▶ a rule for each kind of use
                                                               ├─▶ edits of the text ──▶ a diff
                                                               └─▶ a line: what to know, or why not

A rule that meets anything which it does not know leaves the use alone.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from ringfeed.errors import RingfeedError

try:
    import libcst as cst
    from libcst import matchers as m
    from libcst import metadata
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "scripts are read by the package libcst, which is missing: pip install 'ringfeed[migrate]'",
        name="libcst",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORCH = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}
SEQUENCES = {
    f"{root}.utils.{name}"
    for root in ("keras", "tensorflow.keras", "tf_keras")
    for name in ("PyDataset", "Sequence")
}
FIT = {"workers", "use_multiprocessing", "max_queue_size"}  # arguments of Keras 2
GRAIN = ("grain", "grain.python")
PURE = {"numpy", "math", "json", "os", "pathlib", "PIL", "cv2", "csv", "h5py"}
EFFECTS = (
    r"\w*rand\w*|shuffle|\brng|\bglobal|nonlocal|print|append|extend|\bpop|next\(|\btime|\bself"
)

WITHOUT = "num_workers=0 is torch's own way here, too; give it workers"
DRAWS = "random numbers depend on the sample, no longer on the worker (docs/torch.md)"
STAYS = "torch's class, of which ringfeed's is derived, stays here"
OTHER = "it is a class of its own"
PREPARED = "accelerate's prepare() makes a DataLoader of torch's of any (docs/torch.md)"
INSTALLED = "ringfeed.keras.install() reads it, in Keras' order (docs/from-pydataset.md)"
OLD = "these are arguments of Keras 2; Keras 3 has them in the PyDataset"
SIGNATURE = "give output_signature=, which says shapes and dtypes, and no args="
FORMS = "its elements differ in shape, or are texts (docs/forms.md)"
BATCH = "a batch() has to follow, as a loader makes batches"
ONE = "one process reads it; several read a dataset with __getitem__ (docs/from-generator.md)"
WHOLE = "a loader's epoch is all records: num_records=len(source), num_epochs=1, NoSharding()"
MAPS = "give one function for all maps, and a seed of the order"
NUMBERS = "a Python float is float32, no longer float64"
ORDER = "the order is another, as each shuffles in a way of its own"
EACH = (
    "a batch is of neighbours, where each worker of a grain.DataLoader makes its own of every n-th"
)
HERE = "workers=0 reads in this process: give more"
OTHERS = "give the numbers as a source: grain.MapDataset.source(range(...))"


class Left(Exception):  # noqa: N818 - no error
    """Why a use is left alone."""


class Script:
    """A script, the names that come from its imports, and its edits."""

    def __init__(self, text: str) -> None:
        """RingfeedError where it is no Python."""
        try:
            self.module = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            raise RingfeedError(
                f"line {error.raw_line}: this is no Python: {error.message}"
            ) from None
        wrapper = metadata.MetadataWrapper(self.module, unsafe_skip_copy=True)
        self.spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
        self.places = wrapper.resolve(metadata.PositionProvider)
        self.parents: Any = wrapper.resolve(metadata.ParentNodeProvider)
        self.named: dict[Any, str] = {}
        for node, found in wrapper.resolve(metadata.QualifiedNameProvider).items():
            names: Any = found() if callable(found) else found
            if {one.source for one in names} == {metadata.QualifiedNameSource.IMPORT}:
                self.named[node] = min(one.name for one in names)
        self.edits: list[tuple[int, int, str]] = []
        self.said: list[tuple[int, str]] = []
        self.imports: set[str] = set()  # lines that the edits need

    def code(self, node: Any) -> str:
        """Return what stands there."""
        return self.module.code_for_node(node).strip(", \n")

    def find(self, pattern: Any, root: Any = None) -> Any:
        """Return the nodes that match a pattern."""
        return m.findall(root or self.module, pattern)

    def calls(self, *names: str) -> Iterator[Any]:
        """Yield the calls of what has one of these names."""
        for node, name in self.named.items():
            if isinstance(node, cst.Call) and name in names:
                yield node

    def given(self, call: Any, *names: str) -> dict[str, Any]:
        """Return the arguments of a call by their names; `Left` where there are others."""
        if not isinstance(call, cst.Call):
            raise Left(f"{self.code(call)} is no call")
        found = {}
        for number, arg in enumerate(call.args):
            name = arg.keyword.value if arg.keyword else [*names, ""][min(number, len(names))]
            if arg.star or name not in names:
                raise Left(f"the argument {self.code(arg)} is not known here")
            found[name] = arg.value
        return found

    def value(self, node: Any) -> Any:
        """Return an expression, or the one that a name is assigned."""
        if not isinstance(node, cst.Name):
            return node
        targets = self.find(m.AssignTarget(m.Name(node.value)))
        if len(targets) != 1 or self.find(m.Param(m.Name(node.value))):
            raise Left(f"{node.value} is not assigned once")
        return self.parents[targets[0]].value

    def steps(self, call: Any) -> Iterator[tuple[str, Any]]:
        """Yield the methods that are called on a call's result, one after another."""
        while isinstance(attribute := self.parents[call], cst.Attribute):
            call = self.parents[attribute]
            yield attribute.attr.value, call

    def put(self, node: Any, text: str, line: str = "") -> None:
        """Write a text in the place of a node, and a line below the imports."""
        span = self.spans[node]
        self.edits.append((span.start, span.start + span.length, text))
        self.imports.add(line)

    def say(self, node: Any, text: str) -> None:
        """Note what is to be known of a place."""
        self.said.append((self.places[node].start.line, text))

    def attempt(self, rule: Callable[[Script, Any], str], *names: str) -> None:
        """Change calls by a rule, or say why they stay."""
        for call in self.calls(*names):
            try:
                self.say(call, f"{names[0]}: {rule(self, call)}")
            except Left as reason:
                self.say(call, f"{names[0]} is left alone: {reason}")
            except KeyError as missing:
                self.say(call, f"{names[0]} is left alone: {missing} is not given")

    def changed(self) -> str:
        """Return the text with all edits."""
        source, at = self.module.bytes, 0
        first = min(self.edits, default=(len(source),))[0]
        for statement in self.module.body:
            span = self.spans[statement]
            end = span.start + span.length
            if isinstance(statement, cst.FunctionDef | cst.ClassDef) or end > first:
                break
            is_plain = isinstance(statement, cst.SimpleStatementLine | cst.Try)
            if is_plain and self.find(m.Import() | m.ImportFrom(), statement):
                at = source.find(b"\n", end) + 1
        lines = "".join(f"{line}\n" for line in sorted(self.imports) if line)
        for start, end, text in sorted([*self.edits, (at, at, lines)], reverse=True):
            source = source[:start] + text.encode() + source[end:]
        return source.decode(self.module.encoding)


def migrate(text: str, name: str) -> tuple[str, list[str]]:
    """Return the diff of a script, "" where nothing is changed, and a line on each use.

    RingfeedError where the text is no Python.
    """
    script = rewritten(text)
    before, after = (part.splitlines(keepends=True) for part in (text, script.changed()))
    lines = [f"{name}:{line}: {said}\n" for line, said in sorted(script.said)]
    lines = lines or [f"{name}: it uses no loader that is known here\n"]
    return "".join(difflib.unified_diff(before, after, name, name)), lines


def rewritten(text: str) -> Script:
    """Return a script with its edits."""
    script = Script(text)
    torch(script)
    keras(script)
    script.attempt(from_generator, "tensorflow.data.Dataset.from_generator")
    script.attempt(grain_loader, *(f"{root}.DataLoader" for root in GRAIN))
    chains = [f"{root}.MapDataset.{name}" for root in GRAIN for name in ("source", "range")]
    script.attempt(map_dataset, *chains)
    return script


# ---- torch ----


def torch(script: Script) -> None:
    """Have calls of torch's DataLoader make ringfeed's, which has the same parameters."""
    is_prepared = any(name.startswith("accelerate.") for name in script.named.values())
    calls, has_others = [], is_prepared
    for node, name in script.named.items():
        parent = script.parents[node]
        ours = name.startswith(("grain.", "ringfeed.")) or isinstance(node, cst.Call)
        if ours or not name.endswith("DataLoader") or isinstance(parent, cst.Annotation):
            continue
        if name not in TORCH:
            script.say(node, f"{name} is left alone: {OTHER}")
        elif isinstance(parent, cst.Call) and parent.func is node and not is_prepared:
            calls.append(node)
        else:
            has_others = True
            script.say(node, f"{name} is left alone: {PREPARED if is_prepared else STAYS}")
    imports = [
        (found, alias)
        for found in script.find(m.ImportFrom(names=[m.AtLeastN(n=0)]))
        for alias in found.names
        if found.module and f"{script.code(found.module)}.{alias.evaluated_name}" in TORCH
    ]
    by_import = len(imports) == 1 and not has_others
    by_import &= bool(calls) and all(isinstance(node, cst.Name) for node in calls)
    if by_import:
        _put_import(script, *imports[0])
    for node in calls:
        if not by_import:
            script.put(node, "ringfeed.torch.DataLoader", "import ringfeed.torch")
        arguments = script.parents[node].args
        given = {arg.keyword.value: script.code(arg.value) for arg in arguments if arg.keyword}
        has_none = given.get("num_workers", "0") == "0" and not any(arg.star for arg in arguments)
        script.say(node, f"DataLoader: {WITHOUT if has_none else DRAWS}")


def _put_import(script: Script, found: Any, alias: Any) -> None:
    """Import a name of torch's from ringfeed, in the same place."""
    others = ", ".join(script.code(other) for other in found.names if other is not alias)
    line = f"from ringfeed.torch import {script.code(alias)}"
    if others:
        indent = " " * script.places[found].start.column
        line = f"from {script.code(found.module)} import {others}\n{indent}{line}"
    script.put(found, line)


# ---- Keras ----


def keras(script: Script) -> None:
    """Have Keras read all PyDatasets over a ring."""
    bases = {
        script.parents[script.parents[node]]: name
        for node, name in script.named.items()
        if name in SEQUENCES and isinstance(script.parents[script.parents[node]], cst.ClassDef)
    }
    if not bases or "ringfeed.keras.install" in script.named.values():
        return
    for call in script.find(m.Call(func=m.Attribute())):
        words = {arg.keyword.value for arg in call.args if arg.keyword} & FIT
        is_fit = call.func.attr.value in {"fit", "evaluate", "predict", "fit_generator"}
        if is_fit and words and not any(name.startswith("tf_keras") for name in bases.values()):
            script.say(call, f"PyDataset is left alone: {OLD}")
            return
    script.imports.add("import ringfeed.keras\n\nringfeed.keras.install()")
    for base in bases:
        script.say(base, f"{base.name.value}: {INSTALLED}")


# ---- tf.data ----


def from_generator(script: Script, call: Any) -> str:
    """Have a process read a function of elements into batches."""
    names = ("generator", "output_types", "output_shapes", "args", "output_signature")
    given = script.given(call, *names)
    if given.keys() != {names[0], names[-1]}:
        raise Left(SIGNATURE)
    spec = given["output_signature"]
    if re.search("None|string|Ragged|Sparse|unknown", script.code(script.value(spec))):
        raise Left(FORMS)
    _check_pure(script, given["generator"])
    name, step = next(script.steps(call), ("", None))
    if name != "batch":
        raise Left(BATCH)
    made = [script.code(given["generator"]), _batch(script, step), f"spec={script.code(spec)}"]
    text = f"ringfeed.Loader({', '.join(made)}, workers=1).to_tf_dataset()"
    script.put(step, text, "import ringfeed")
    return ONE


def _batch(script: Script, call: Any) -> str:
    """Return the arguments of a loader for those of a batch()."""
    given = script.given(call, "batch_size", "drop_remainder")
    return ", ".join(f"{name}={script.code(node)}" for name, node in given.items())


def _check_pure(script: Script, generator: Any) -> None:
    """Raise `Left` unless a function gives the same elements in another process."""
    if m.matches(generator, m.Lambda(body=m.Call(func=m.Name()))):
        generator = generator.body.func
    functions = {one.name.value: one for one in script.find(m.FunctionDef())}
    names = [script.code(generator)]
    for name in names:  # which grows
        if len(script.find(m.FunctionDef(m.Name(name)))) != 1:
            raise Left(f"{name} is no function that this script has once")
        code = script.code(functions[name].body)
        if found := re.search(EFFECTS, code):
            raise Left(f"{name}() has {found[0]!r}, which may be of this process alone")
        for node in script.find(m.Call(), functions[name]):
            root = script.named.get(node, "numpy").partition(".")[0]
            if root not in PURE:
                raise Left(f"{name}() calls a function of {root}, which may depend on the process")
        names += sorted({*re.findall(r"\w+", code)} & functions.keys() - {*names})


# ---- Grain ----


def grain_loader(script: Script, call: Any) -> str:
    """Make a Loader of a DataLoader that reads all records once."""
    given = script.given(
        call, "data_source", "sampler", "operations", "worker_count", "worker_buffer_size"
    )
    sampler, operations = script.value(given["sampler"]), script.value(given["operations"])
    names = ("num_records", "shard_options", "shuffle", "num_epochs", "seed")
    order = {name: script.code(node) for name, node in script.given(sampler, *names).items()}
    records, shards = (
        f"len({script.code(given['data_source'])})",
        order.get("shard_options", "NoSharding()"),
    )
    is_whole = order.get("num_records") == records and shards.endswith("NoSharding()")
    if order.get("num_epochs") != "1" or not is_whole:
        raise Left(WHOLE)
    *maps, batch = [one.value for one in getattr(operations, "elements", ())] or [operations]
    if not script.named.get(batch, "").endswith(".Batch"):
        raise Left(BATCH)
    shuffle = order.get("shuffle", "False")
    if shuffle not in {"True", "False"}:
        raise Left(f"shuffle={shuffle} is known only when it runs")
    seed = "" if shuffle == "False" else order.get("seed", "None")
    return _put_loader(
        script, call, given["data_source"], maps, batch, seed, given.get("worker_count")
    )


def map_dataset(script: Script, call: Any) -> str:
    """Make a Loader of a chain of steps."""
    if call.func.attr.value == "range":
        raise Left(OTHERS)
    steps, last = dict[str, Any](), call
    for name, last in script.steps(call):
        is_known = name in {"map", "shuffle", "batch", "to_iter_dataset", "mp_prefetch"}
        if not is_known or name in steps or (name in {"map", "shuffle"} and "batch" in steps):
            raise Left(f"a loader has no place for this .{name}()")
        steps[name] = last
    if "batch" not in steps:
        raise Left(BATCH)
    seed = script.code(script.given(steps["shuffle"], "seed")["seed"]) if "shuffle" in steps else ""
    maps = [script.given(steps["map"], "transform")["transform"]] if "map" in steps else []
    workers = None
    if "mp_prefetch" in steps:
        options = script.value(script.given(steps["mp_prefetch"], "options")["options"])
        workers = script.given(options, "num_workers", "per_worker_buffer_size")["num_workers"]
    source = script.given(call, "source")["source"]
    return _put_loader(script, last, source, maps, steps["batch"], seed, workers)


def _put_loader(  # noqa: PLR0913, PLR0917 - what both have
    script: Script, call: Any, source: Any, maps: list[Any], batch: Any, seed: str, workers: Any
) -> str:
    if len(maps) > 1 or seed == "None":
        raise Left(MAPS)
    made = [script.code(source), _batch(script, batch)]
    made += [f"shuffle=True, seed={seed}"] if seed else []
    for one in maps:
        made.append(f"transform={script.code(one)}")
        if isinstance(one, cst.Call):  # of a class of transformations
            classes = script.find(m.ClassDef(m.Name(script.code(one.func))))
            if not any(script.find(m.FunctionDef(m.Name("map")), found) for found in classes):
                raise Left(f"{script.code(one)} is of no class with map() in this script")
            made[-1] += ".map"
    count = script.code(workers) if workers else "0"
    made.append(f"workers={count}")
    script.put(call, f"ringfeed.Loader({', '.join(made)})", "import ringfeed")
    notes = [ORDER] * bool(seed) + [HERE if count == "0" else EACH, NUMBERS]
    return "; ".join(notes)
