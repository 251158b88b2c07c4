"""What a user's functions make of samples and batches, in the workers.

    sample ──▶ transform ──▶ row of a slot                 TransformSource (source), around the dataset's own source
    batch  ──▶ batch_transform ──▶ the same slot
    samples ──▶ collate_fn ──▶ a whole batch, written      CollateSource (collating)
    sample ──▶ (sample, number, weight)                    DrawSource (draws), under a PrioritizedSampler

`functions` are the loader's parameters, checked; `opening` decides which source they make; `_changes` writes them.
Imports only `data`, `spec`, `orders` and `ring`.
"""
