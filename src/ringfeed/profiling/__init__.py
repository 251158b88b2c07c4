"""What a loader costs: read for a few hundred samples, beside other loaders of the same dataset.

Subject ── candidates ──▶ measure: a Reading of each, under `limited` ── usage: CPU and memory by /proc
   │                          │
   └────── stages ────────────┴──▶ LoaderProfile: a table, and words

No framework is imported here: `ringfeed.torch.profiled` and `ringfeed.keras.profiled` have the subjects.
"""
