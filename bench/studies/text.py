"""Tokens a second of Keras' `fit` over real text: `python bench/studies/text.py`, or `--quick` for a short look.

    max        batches of 32, each text padded to the longest of all by the dataset
    pad        the same batches by form="pad", each padded to the longest of its own
    buckets    batches of 32 of like length, by `ringfeed.orders.Buckets`, padded to the longest of their own
    budget     the same, with as many texts as make up what `max` computes in a batch: 32 times the longest

The corpus are the paragraphs of the docstrings of installed packages, and a small convolutional
network learns to tell the packages. All in one process, with the same weights at the beginning and
the same texts in each epoch, taking turns, another one first in each repetition; ratios are taken
within a repetition. Each repetition leaves one JSON line.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from itertools import islice, repeat, zip_longest
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[1]
PACKAGES = "numpy", "keras", "PIL", "json", "email", "asyncio", "unittest", "logging"
MOST = 128  # tokens of a text; what is longer is cut
LEAST = 4
ROWS = 32
WORDS = 8000  # that have a number of their own
TEXTS, QUICK_TEXTS = 6000, 320
REPETITIONS = 5
PROMISED = 1.5

# ---- the corpus ----


class Corpus(NamedTuple):
    """Texts as arrays of the numbers of their words, and the package of each."""

    texts: list[np.ndarray]
    packages: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each text."""
        return np.array([len(text) for text in self.texts])


def corpus(count: int) -> Corpus:
    """So many paragraphs, from all packages in turn; number 0 is padding, 1 a rare word."""
    turns = [zip(paragraphs(name), repeat(package)) for package, name in enumerate(PACKAGES)]
    found = [
        *islice((one for some in zip_longest(*turns) for one in some if one is not None), count)
    ]
    seen = Counter(word for words, _ in found for word in words)
    numbers = {word: 2 + place for place, (word, _) in enumerate(seen.most_common(WORDS))}
    texts = [
        np.array([numbers.get(word, 1) for word in words[:MOST]], np.int32) for words, _ in found
    ]
    return Corpus(texts, np.array([package for _, package in found], np.int32))


def paragraphs(package: str) -> Iterator[list[str]]:
    """The words of each paragraph of a package's docstrings."""
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(place).rglob("*.py")):
            for text in docstrings(file):
                for paragraph in re.split(r"\n\s*\n", text):
                    words = re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]", paragraph.lower())
                    if len(words) >= LEAST:
                        yield words


def docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in other people's strings
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            text := ast.get_docstring(node)
        ):
            yield text


# ---- the contenders ----


class Texts:
    """Samples as they are, or padded to ``length``."""

    def __init__(self, corpus: Corpus, length: int | None = None) -> None:
        self.corpus = corpus
        self.length = length

    def __len__(self) -> int:
        return len(self.corpus.texts)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        text = self.corpus.texts[index]
        if self.length is not None:
            padded = np.zeros(self.length, np.int32)
            padded[: len(text)] = text
            text = padded
        return text, self.corpus.packages[index]


def loaders(corpus: Corpus) -> dict[str, ringfeed.Loader]:
    """Each contender's loader; all have the same texts in an epoch."""
    longest, settings = int(corpus.lengths.max()), {"workers": 1, "slots": 3}
    package = ringfeed.Array((), "int32")
    spec = (ringfeed.Array((None,), "int32", max_shape=(longest,), form="pad"), package)
    buckets = {
        "buckets": ringfeed.orders.Buckets(corpus.lengths, batch_sizes=ROWS),
        "budget": ringfeed.orders.Buckets(corpus.lengths, max_tokens=ROWS * longest),
    }
    return {
        "max": ringfeed.Loader(Texts(corpus, longest), batch_size=ROWS, shuffle=True, **settings),
        "pad": ringfeed.Loader(Texts(corpus), batch_size=ROWS, shuffle=True, spec=spec, **settings),
        **{
            name: ringfeed.Loader(Texts(corpus), batch_sampler=sampler, spec=spec, **settings)
            for name, sampler in buckets.items()
        },
    }


def model() -> Any:
    """A network that reads words, and what they stand beside, and no padding."""
    import keras  # noqa: PLC0415 - the corpus is made without

    keras.utils.set_random_seed(0)
    words = keras.Input((None,), dtype="int32")
    found = keras.layers.Embedding(WORDS + 2, 64)(words)
    for _ in range(2):
        found = keras.layers.Conv1D(96, 5, padding="same", activation="relu")(found)
    real = keras.ops.cast(keras.ops.expand_dims(keras.ops.not_equal(words, 0), -1), "float32")
    found = keras.ops.max(found * real, axis=1)
    made = keras.Model(words, keras.layers.Dense(len(PACKAGES))(found))
    made.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return made


# ---- measuring ----


def padding_of(loader: ringfeed.Loader) -> float:
    """The share of an epoch's numbers that are padding."""
    seen = [(tokens.size, int((tokens == 0).sum())) for tokens, _ in loader]
    return sum(padding for _, padding in seen) / sum(size for size, _ in seen)


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A line for each repetition: the seconds of an epoch, the loss and the share of padding by contender."""
    texts = corpus(QUICK_TEXTS if quick else TEXTS)
    made = loaders(texts)
    padding = {name: padding_of(loader) for name, loader in made.items()}
    models = {name: model() for name in made}
    for name, loader in made.items() if not quick else ():
        models[name].fit(loader.to_keras(), epochs=1, verbose=0)  # which traces the step
    found = []
    for repetition in range(1 if quick else REPETITIONS):
        turns = list(made.items())
        turns = turns[repetition % len(turns) :] + turns[: repetition % len(turns)]
        runs = {name: epoch_of(models[name], loader) for name, loader in turns}
        found.append(
            {
                "repetition": repetition,
                "tokens": int(texts.lengths.sum()),
                "runs": runs,
                "padding": padding,
            }
        )
    for loader in made.values():
        loader.close()
    return found


def epoch_of(made: Any, loader: ringfeed.Loader) -> dict[str, float]:
    """One epoch of `fit`."""
    began_s = time.perf_counter()
    history = made.fit(loader.to_keras(), epochs=1, verbose=0).history
    return {
        "s": time.perf_counter() - began_s,
        "loss": history["loss"][0],
        "accuracy": history["accuracy"][0],
    }


def show(records: list[dict[str, Any]]) -> str:
    """A line for each contender."""
    first = records[0]
    lines = [f"{'':8} {'padding':>8} {'tokens a second':>16} {'over max':>9} {'accuracy':>9}"]
    for name in first["runs"]:
        speeds = [record["tokens"] / record["runs"][name]["s"] for record in records]
        ratio = median(record["runs"]["max"]["s"] / record["runs"][name]["s"] for record in records)
        accuracy = records[-1]["runs"][name]["accuracy"]
        lines.append(
            f"{name:8} {first['padding'][name]:>8.0%} {median(speeds):>16,.0f} {ratio:>8.2f}x "
            f"{accuracy:>9.0%}"
        )
    lines.append(f"promised: {PROMISED} times max with buckets; {first['tokens']:,} tokens")
    return "\n".join(lines)


def main() -> None:
    """Measure, append to the results and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"one repetition of {QUICK_TEXTS} texts"
    )
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results" / f"text-{time.strftime('%Y-%m-%d')}.jsonl"
    )
    options = parser.parse_args()
    facts = {
        **conditions(quick=options.quick),
        "versions": versions((("keras", ""), ("tensorflow", ""))),
    }
    records = [{**facts, **found} for found in measure(quick=options.quick)]
    with options.out.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(show(records))


if __name__ == "__main__":
    main()
