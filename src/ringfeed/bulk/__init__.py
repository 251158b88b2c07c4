"""Datasets that give many samples at once, by ``__getitems__(indices)``: torch's protocol.

    RowWriter.bulk ──▶ _bulk: all rows of a claim in one call; after a failure or a death, one at a time

`spec` imports this room for the first such claim. Imports only `spec` and `ring`.
"""
