"""Train a torch model on sentences of different lengths: each batch is padded to its own longest sentence.

Run it: python padded_text.py (needs torch). The sentences are made up: one that says "not" means
the opposite. A batch is a pair of token ids and lengths; no collate_fn is needed.
"""

from __future__ import annotations

import random

import numpy as np
import torch

import ringfeed

WORDS = {
    0: ["bad", "poor", "boring", "weak", "awful", "dull"],
    1: ["good", "great", "funny", "strong", "lovely", "bright"],
}
FILLERS = [
    "the",
    "a",
    "this",
    "film",
    "plot",
    "scene",
    "music",
    "was",
    "is",
    "quite",
    "very",
    "and",
    "then",
    "of",
    "in",
]
VOCABULARY = {
    word: number for number, word in enumerate(["", "not", *FILLERS, *WORDS[0], *WORDS[1]])
}
MOST_WORDS = 40
HELD_OUT = 400


def sentence(number: int) -> tuple[list[str], int]:
    """Return the words of a sentence, 4 to MOST_WORDS of them, and whether it praises."""
    dice = random.Random(number)  # noqa: S311 - made-up sentences
    tone, is_negated = dice.randrange(2), dice.randrange(2)
    words = dice.choices(FILLERS, k=dice.randrange(2, MOST_WORDS - 1))
    place = dice.randrange(len(words))
    words[place:place] = [*["not"] * is_negated, dice.choice(WORDS[tone])]
    return words, tone ^ is_negated


class Sentences:
    """Token ids of sentences, as long as each is, and their classes."""

    def __init__(self, first: int, count: int) -> None:
        self.sentences = [sentence(number) for number in range(first, first + count)]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        words, label = self.sentences[index]
        return np.array([VOCABULARY[word] for word in words], np.int64), label


class Reader(torch.nn.Module):
    """Reads pairs of neighbouring words, and judges by the strongest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(len(VOCABULARY), 16, padding_idx=0)
        self.pairs = torch.nn.Conv1d(16, 32, 2, padding=1)
        self.judge = torch.nn.Linear(32, 2)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the logits; what is padding is left out."""
        found = self.pairs(self.embed(ids).transpose(1, 2))
        is_padding = torch.arange(found.shape[2]) > lengths[:, None]
        return self.judge(found.masked_fill(is_padding[:, None], -1e9).amax(2))


torch.manual_seed(0)
torch.set_num_threads(1)  # the net is too small to share
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
spec = (
    ringfeed.Array((None,), "int64", max_shape=(MOST_WORDS,), form="pad", lengths=True),
    ringfeed.Array((), "int64"),
)

with (
    ringfeed.Loader(
        Sentences(0, 3000), batch_size=50, shuffle=True, spec=spec, workers=2
    ) as loader,
    ringfeed.Loader(Sentences(3000, HELD_OUT), batch_size=50, spec=spec, workers=1) as held_out,
):
    batches = loader.to_torch()
    for epoch in range(6):
        total, places = 0.0, 0
        for (ids, lengths), labels in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(ids, lengths), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(batches)
            places += ids.numel()
        print(f"epoch {epoch}: loss {total:.3f}, {places:,} places for tokens")
    with torch.no_grad():
        right = sum(
            (model(ids, lengths).argmax(1) == labels).sum().item()
            for (ids, lengths), labels in held_out.to_torch()
        )
    print(f"accuracy on {HELD_OUT} sentences never seen: {right / HELD_OUT:.1%}")
    print(f"shared memory: {(loader.memory + held_out.memory) / 1e6:.1f} MB")
