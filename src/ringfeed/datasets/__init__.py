"""Datasets that ringfeed brings: made of others, or held in memory that all workers share.

    Mix      samples of several datasets, in shares
    Pack     rows of fixed length, of several samples each
    Frozen   a list of strings, numbers or records as a few arrays
    Passes   one of Keras' own, read pass by pass, in Keras' order

Each is read as any other: by a source of `data`'s kind (MixSource, PackSource), or sample by sample.
"""
