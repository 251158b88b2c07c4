"""Scripts of other loaders, small, as tutorials have them: what `ringfeed migrate` is to change, and to leave alone.

Run as a program, this file runs those of one framework, as they are and migrated, and prints what each has recorded.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

TORCH, KERAS, TF_DATA, GRAIN = {}, {}, {}, {}
LEFT = {"derived", "accelerated", "random", "batched later", "filtered"}  # not changed
SHUFFLED = {"shuffled"}  # the same batches of other samples

# ---- torch ----

TORCH["tensors"] = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
loader = DataLoader(dataset, batch_size=6, shuffle=True, num_workers=2)
for epoch in range(2):
    for x, y in loader:
        record((x, y))
"""

TORCH["of an attribute"] = """
import torch
import torch.nn as nn

class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 17
    def __getitem__(self, idx):
        return torch.full((1, 4, 4), float(idx)), idx % 10

train_loader = torch.utils.data.DataLoader(Digits(), batch_size=4, shuffle=False, num_workers=2, drop_last=True)
for i, (images, labels) in enumerate(train_loader):
    record((images, labels))
"""

TORCH["padded"] = """
import torch
import torch.utils.data as data

class Sentences(data.Dataset):
    def __init__(self):
        self.words = [list(range(1 + n % 5)) for n in range(12)]
    def __getitem__(self, index):
        return torch.tensor(self.words[index]), len(self.words[index])
    def __len__(self):
        return len(self.words)

def collate(batch):
    words, lengths = zip(*batch)
    return torch.nn.utils.rnn.pad_sequence(list(words), batch_first=True), torch.tensor(lengths)

for batch in data.DataLoader(Sentences(), 5, False, num_workers=1, collate_fn=collate):
    record(batch)
"""

TORCH["a batch sampler"] = """
from torch.utils import data
import torch

dataset = data.TensorDataset(torch.arange(10))
sampler = data.BatchSampler(data.SequentialSampler(dataset), batch_size=3, drop_last=False)
for (x,) in data.DataLoader(dataset, batch_sampler=sampler, num_workers=2, prefetch_factor=4):
    record(x)
"""

TORCH["a split"] = """
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    random_split,
)

class Pictures(Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, i):
        return {"image": torch.ones(3, 8, 8) * i, "mask": torch.zeros(8, 8, dtype=torch.long) + i}

train, val = random_split(Pictures(), [24, 6], generator=torch.Generator().manual_seed(0))
loader_args = dict(batch_size=4, num_workers=2, pin_memory=False)
train_loader = DataLoader(train, shuffle=True, generator=torch.Generator().manual_seed(1), **loader_args)
val_loader = DataLoader(val, shuffle=False, drop_last=True, **loader_args)
for loader in (train_loader, val_loader):
    for batch in loader:
        record(batch)
"""

TORCH["an iterable"] = """
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Numbers(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter(torch.arange(info.id, 20, info.num_workers))

for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
    record(batch)
"""

TORCH["annotated"] = """
import numpy as np
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, n: int):
        self.x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    def __len__(self) -> int:
        return len(self.x)
    def __getitem__(self, i: int):
        return self.x[i]

def make_loader(n: int, train: bool) -> DataLoader:
    return DataLoader(Rows(n), batch_size=8, shuffle=False, num_workers=1 if train else 0)

def evaluate(loader: DataLoader):
    for x in loader:
        record(x)

if __name__ == "__main__":
    evaluate(make_loader(20, True))
    evaluate(make_loader(9, False))
"""

TORCH["no workers"] = """
import torch
from torch.utils.data import DataLoader

torch.manual_seed(2)
loader = DataLoader([torch.rand(3) for _ in range(10)], batch_size=4, shuffle=True)
for x in loader:
    record(x)
"""

TORCH["another name"] = """
import torch
from torch.utils.data import DataLoader as TorchLoader, TensorDataset

for x, in TorchLoader(TensorDataset(torch.arange(9)), batch_size=2, num_workers=1, persistent_workers=True):
    record(x)
"""

TORCH["asked for its class"] = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader(torch.arange(9), batch_size=2, num_workers=1)
assert isinstance(loader, DataLoader)
for x in loader:
    record(x)
"""

TORCH["a weighted sampler"] = """
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

weights = torch.linspace(0.1, 1, 20)
sampler = WeightedRandomSampler(weights, 20, generator=torch.Generator().manual_seed(5))
for x, in DataLoader(TensorDataset(torch.arange(20)), batch_size=5, sampler=sampler, num_workers=2):
    record(x)
"""

TORCH["a module of data"] = """
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

class Module:
    def __init__(self, batch_size: int = 4):
        self.batch_size = batch_size
        self.full = TensorDataset(torch.arange(20), torch.arange(20) % 2)
    def train_dataloader(self):
        return DataLoader(Subset(self.full, range(14)), batch_size=self.batch_size, num_workers=2)
    def val_dataloader(self):
        return DataLoader(Subset(self.full, range(14, 20)), batch_size=self.batch_size, num_workers=2)

module = Module()
for loader in (module.train_dataloader(), module.val_dataloader()):
    for batch in loader:
        record(batch)
"""

TORCH["by position"] = """
import numpy as np
import torch
import torch.utils.data

class Noise(torch.utils.data.Dataset):
    'Numbers that depend on the index alone.'
    def __init__(self, n, transform=None):
        self.n, self.transform = n, transform
    def __len__(self):
        return self.n
    def __getitem__(self, idx):
        x = np.random.default_rng(idx).standard_normal(4).astype(np.float32)
        return self.transform(x) if self.transform else x

kwargs = {"num_workers": 2, "pin_memory": False} if True else {}
torch.manual_seed(6)
train_loader = torch.utils.data.DataLoader(Noise(11, torch.from_numpy), 4, True, **kwargs)
test_loader = torch.utils.data.DataLoader(Noise(5), 2, **kwargs)
for epoch in range(2):
    for loader in (train_loader, test_loader):
        for batch_idx, x in enumerate(loader):
            record(x)
"""

TORCH["text"] = """
from collections import Counter
import torch
from torch.utils.data import Dataset, DataLoader
from torch.nn.utils.rnn import pad_sequence

lines = ["a b c", "b c", "a", "c c c a", "b"]
vocab = {word: i + 1 for i, (word, _) in enumerate(sorted(Counter(" ".join(lines).split()).items()))}

class Lines(Dataset):
    def __len__(self):
        return len(lines)
    def __getitem__(self, i):
        return lines[i], torch.tensor([vocab[word] for word in lines[i].split()])

def collate_batch(batch):
    texts, ids = zip(*batch)
    return list(texts), pad_sequence(list(ids), batch_first=True, padding_value=0)

dataloader = DataLoader(Lines(), batch_size=2, shuffle=False, collate_fn=collate_batch, num_workers=2)
for texts, ids in dataloader:
    record((texts, ids))
"""

TORCH["derived"] = """
import torch
from torch.utils.data import DataLoader

class Doubled(DataLoader):
    def __iter__(self):
        return (2 * batch for batch in super().__iter__())

for x in Doubled(torch.arange(9), batch_size=2, num_workers=1):
    record(x)
"""

# ---- Keras ----

KERAS["a dataset"] = """
import keras
import numpy as np

keras.utils.set_random_seed(0)

class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
    def __len__(self):
        return 5
    def __getitem__(self, idx):
        rows = slice(8 * idx, 8 * idx + 8)
        return self.x[rows], self.y[rows]

x, y = np.arange(120, dtype="float32").reshape(40, 3) / 120, np.arange(40, dtype="float32")[:, None] / 40
model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
model.compile("sgd", "mse")
record(model.fit(Batches(x, y, workers=2), epochs=2, verbose=0).history["loss"])
record(model.get_weights())
"""

KERAS["a Sequence"] = """
import numpy as np
from keras.utils import Sequence, set_random_seed
from keras import layers, models

set_random_seed(1)

class DataGenerator(Sequence):
    'Generates data'
    def __init__(self, list_IDs, batch_size=4, shuffle=True):
        super().__init__()
        self.batch_size, self.list_IDs, self.shuffle = batch_size, list_IDs, shuffle
        self.rng = np.random.default_rng(0)
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        indexes = self.indexes[index * self.batch_size:(index + 1) * self.batch_size]
        X = np.stack([np.full(5, self.list_IDs[k], "float32") for k in indexes])
        return X, X.mean(axis=1, keepdims=True)

    def on_epoch_end(self):
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle:
            self.rng.shuffle(self.indexes)

model = models.Sequential([layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
training, validation = DataGenerator([n / 20 for n in range(20)]), DataGenerator([0.5] * 8, shuffle=False)
history = model.fit(training, validation_data=validation, epochs=3, verbose=0, shuffle=False)
record(history.history["loss"])
record(history.history["val_loss"])
"""

KERAS["of tensorflow"] = """
import numpy as np
import tensorflow as tf
from tensorflow import keras

tf.keras.utils.set_random_seed(3)

class Loader(tf.keras.utils.PyDataset):
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return np.full((4, 2), i, "float32"), np.full((4, 1), i, "float32")

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
model.fit(Loader(workers=1), epochs=2, verbose=0)
record(model.get_weights())
record(model.evaluate(Loader(), verbose=0))
record(model.predict(Loader(), verbose=0))
"""

KERAS["processes"] = """
import os
import numpy as np
import keras

keras.utils.set_random_seed(4)

class Texts(keras.utils.PyDataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return {"a": np.full((3, 2), i, "float32"), "b": np.ones((3, 1), "float32")}, np.full((3, 1), 2 * i, "float32")

a, b = keras.Input((2,), name="a"), keras.Input((1,), name="b")
model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
model.compile("sgd", "mae")
model.fit(Texts(workers=2, use_multiprocessing=True, max_queue_size=4), epochs=2, verbose=0)
record(model.get_weights())
"""

# ---- tf.data ----

TF_DATA["rows"] = """
import numpy as np
import tensorflow as tf

features, labels = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20)

def gen():
    for i in range(len(features)):
        yield features[i], labels[i]

dataset = tf.data.Dataset.from_generator(
    gen,
    output_signature=(
        tf.TensorSpec(shape=(3,), dtype=tf.float32),
        tf.TensorSpec(shape=(), dtype=tf.int64),
    ),
).batch(6)
for x, y in dataset:
    record((x, y))
"""

TF_DATA["a dict"] = """
import tensorflow as tf
import numpy as np

def samples():
    for n in range(25):
        picture = np.full((4, 4, 1), n, np.uint8)
        yield {"image": picture, "label": n % 10}

spec = {"image": tf.TensorSpec((4, 4, 1), tf.uint8), "label": tf.TensorSpec((), tf.int32)}
ds = tf.data.Dataset.from_generator(samples, output_signature=spec).batch(4, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
for epoch in range(2):
    for batch in ds:
        record(batch)
"""

TF_DATA["mapped"] = """
import tensorflow as tf
import numpy as np

def load(i):
    return np.sin(np.arange(5) * i).astype(np.float32)

def generator():
    i = 0
    while i < 11:
        yield load(i), np.int64(i)
        i += 1

signature = (tf.TensorSpec((5,), tf.float32), tf.TensorSpec((), tf.int64))
ds = (
    tf.data.Dataset.from_generator(generator, output_signature=signature)
    .batch(4)
    .map(lambda x, y: (x * 2, y))
    .repeat(2)
)
for x, y in ds:
    record((x, y))
"""

TF_DATA["a lambda"] = """
import tensorflow as tf

def count(stop):
    for n in range(stop):
        yield n, float(n) / 2

ds = tf.data.Dataset.from_generator(
    lambda: count(13), output_signature=(tf.TensorSpec((), tf.int32), tf.TensorSpec((), tf.float32)))
train = tf.data.Dataset.from_generator(
    lambda: count(13), output_signature=(tf.TensorSpec((), tf.int32), tf.TensorSpec((), tf.float32))).batch(5)
for n, half in train:
    record((n, half))
for n, half in ds.take(2):
    record((n, half))
"""

TF_DATA["files"] = """
import os
import tempfile
import numpy as np
import tensorflow as tf

folder = tempfile.mkdtemp()
for n in range(7):
    np.save(os.path.join(folder, f"{n}.npy"), np.full((2, 3), n, np.float32))
paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

def load_all():
    for path in paths:
        yield np.load(path)

train_ds = tf.data.Dataset.from_generator(
    load_all, output_signature=tf.TensorSpec(shape=(2, 3), dtype=tf.float32)
).batch(3).prefetch(1)
for batch in train_ds:
    record(batch)
"""

TF_DATA["random"] = """
import numpy as np
import tensorflow as tf

np.random.seed(0)

def gen():
    for i in range(8):
        yield np.random.rand(2).astype("float32")

for x in tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec((2,), tf.float32)).batch(4):
    record(x)
"""

TF_DATA["batched later"] = """
import tensorflow as tf

def gen():
    yield from range(10)

ds = tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec((), tf.int32))
ds = ds.shuffle(10, seed=1).batch(4)
for x in ds:
    record(x)
"""

# ---- Grain ----

GRAIN["a loader"] = """
import grain.python as grain
import numpy as np

class Source:
    def __len__(self):
        return 22
    def __getitem__(self, index):
        return {"x": np.full(3, index, np.float32), "y": np.int64(index)}

class Scale(grain.MapTransform):
    def map(self, element):
        return {"x": element["x"] / 2, "y": element["y"]}

source = Source()
sampler = grain.IndexSampler(
    num_records=len(source), num_epochs=1, shard_options=grain.NoSharding(), shuffle=False, seed=0)
loader = grain.DataLoader(
    data_source=source,
    sampler=sampler,
    operations=[Scale(), grain.Batch(batch_size=5)],
    worker_count=0,
)
for batch in loader:
    record(batch)
"""

GRAIN["a loader without a map"] = """
import grain
import numpy as np

rows = [np.arange(4) + n for n in range(10)]
loader = grain.DataLoader(
    data_source=rows,
    sampler=grain.samplers.IndexSampler(len(rows), shuffle=False, num_epochs=1, seed=0),
    operations=[grain.transforms.Batch(batch_size=4, drop_remainder=True)],
    worker_count=0)
for batch in loader:
    record(batch)
"""

GRAIN["a chain"] = """
import grain
import numpy as np

dataset = (
    grain.MapDataset.source(np.arange(24, dtype=np.float32).reshape(12, 2))
    .map(lambda row: row + 1)
    .batch(batch_size=5)
)
for batch in dataset:
    record(batch)
print(len(dataset))
"""

GRAIN["a chain of workers"] = """
import grain
import numpy as np

class Pictures:
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return np.full((2, 2), range(16)[i]), np.int32(i)

def halved(sample):
    picture, label = sample
    return picture / 2, label

ds = grain.MapDataset.source(Pictures()).map(halved).batch(4, drop_remainder=True).to_iter_dataset()
for picture, label in ds:
    record((picture, label))
"""

GRAIN["shuffled"] = """
import grain
import numpy as np

for batch in grain.MapDataset.source(np.arange(12)).shuffle(seed=42).batch(4):
    record(batch)
"""

GRAIN["filtered"] = """
import grain
import numpy as np

for batch in grain.MapDataset.source(np.arange(12)).filter(lambda n: n % 2 == 0).to_iter_dataset().batch(4):
    record(batch)
"""

OTHERS: dict[str, str] = {}
OTHERS["accelerated"] = """
from accelerate import Accelerator
from torch.utils.data import DataLoader

loader = Accelerator().prepare(DataLoader([1, 2, 3], batch_size=2))
"""

FRAMEWORKS = {"torch": TORCH, "keras": KERAS, "tf.data": TF_DATA, "grain": GRAIN}


# ---- in a process of one framework ----


def _leaves(value: Any) -> Any:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _leaves(child)
    else:
        yield np.asarray(value)


def _run(text: str, name: str) -> list[Any]:
    """Run a script; returns hashes of what it has recorded, and the numbers of a shuffled one."""
    found: list[Any] = []

    def record(batch: Any) -> None:
        leaves = [*_leaves(batch)]
        parts = [f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes() for leaf in leaves]
        found.append(hashlib.sha256(b"".join(parts)).hexdigest()[:12])
        if name in SHUFFLED:
            found[-1] = [len(leaves[0]), str(leaves[0].dtype), sorted(leaves[0].tolist())]

    module = type(sys)("__main__")
    module.record = record  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    exec(compile(text, f"{name}.py", "exec"), vars(module))  # noqa: S102 - a test's own script
    return found


def main(framework: str) -> None:
    """Run each script as it is, and migrated."""
    from ringfeed.tools.migrate import rewritten  # noqa: PLC0415 - it needs libcst

    if framework == "grain":
        from absl import flags  # noqa: PLC0415 - Grain's

        flags.FLAGS.mark_as_parsed()
    done = {}
    for name, text in FRAMEWORKS[framework].items():
        after = rewritten(text).changed()
        found = [_run(text, name)]
        if after != text:
            found.append(_run(after, name))
        if framework == "keras":
            sys.modules["ringfeed.keras"].uninstall()
        done[name] = found
    sys.stdout.write(f"\n{json.dumps(done)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
