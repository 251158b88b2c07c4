"""A training on two processes by accelerate or by Lightning, with torch's DataLoader or ours: run, cut, gone on.

``python torch_ranks.py {accelerate,lightning} {ours,torchs} FOLDER STEPS``: trains up to step STEPS
of 12, from what lies in FOLDER; each rank writes its losses to FOLDER/losses-RANK.json. Ranks and
their addresses come as torchrun's variables.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as scripts call it
from torch.utils.data import Dataset, DistributedSampler

EPOCHS, BATCH = 2, 4
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Points(Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Points and their sides; 48 of them make 6 steps of an epoch for each of two ranks."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        point = torch.tensor([(index * 7 % 11) / 11, (index * 5 % 13) / 13])
        return point, float(point.sum() > 1)


def made(kind: str) -> Any:
    """Return the DataLoader of this rank."""
    if kind == "ours":
        from ringfeed.torch import DataLoader  # noqa: PLC0415 - the one or the other
    else:
        from torch.utils.data import DataLoader  # noqa: PLC0415
    sampler = DistributedSampler(Points(), RANKS, RANK, shuffle=True, seed=3)
    return DataLoader(Points(), batch_size=BATCH, sampler=sampler, num_workers=1)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss of a batch."""
    points, sides = batch
    return F.binary_cross_entropy_with_logits(model(points).squeeze(1), sides.float())


def by_accelerate(kind: str, folder: Path, steps: int) -> list[float]:
    """Prepare model and optimizer; the loader, which has this rank's part, stays as it is."""
    from accelerate import Accelerator  # noqa: PLC0415 - the one or the other

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    loader, net = made(kind), torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5))
    saved, losses, epoch = folder / f"state-{RANK}.pt", [], 0
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        accelerator.unwrap_model(model).load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        losses, epoch = state["losses"], state["loader"]["epoch"]
    for number in range(epoch, EPOCHS):
        loader.sampler.set_epoch(number)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps and kind == "ours":
                weights = accelerator.unwrap_model(model).state_dict()
                torch.save(
                    {"model": weights, "loader": loader.state_dict(), "losses": losses}, saved
                )
                return losses
    return losses


def by_lightning(kind: str, folder: Path, steps: int) -> list[float]:
    """Fit with a checkpoint after step ``steps``; Lightning keeps the loader's state in it."""
    import lightning as pl  # noqa: PLC0415

    losses: list[float] = []

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = loss_of(self.model, batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    torch.manual_seed(0)
    saved, before = folder / "saved.ckpt", folder / f"losses-{RANK}.json"
    had = json.loads(before.read_text()) if before.exists() else []
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    keep = pl.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, filename="saved", every_n_train_steps=steps
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=EPOCHS,
        max_steps=steps,
        callbacks=[keep],
        **quiet,
    )
    trainer.fit(Module(), made(kind), ckpt_path=str(saved) if saved.exists() else None)
    return had + losses


def main() -> None:
    """Train, and leave the losses."""
    by, kind, folder, steps = sys.argv[1:]
    train = by_accelerate if by == "accelerate" else by_lightning
    losses = train(kind, Path(folder), int(steps))
    (Path(folder) / f"losses-{RANK}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
