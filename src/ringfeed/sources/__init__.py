"""What a dataset is, decided once: `opening` asks the object, and makes its source.

    own         of ringfeed's own classes, such as `Mix`        what its __ringfeed_source__(terms, open_source) returns
    arrays      a tuple or dict of equally long arrays          ArraySource
    streams     an iterable, or several in `Interleave`         StreamSource, in the room `iterables`
    batches     batch_size=None: dataset[i] is a whole batch    BatchSource
    samples     any other object with __getitem__               SampleSource

Around them stand the sources of rooms: of what the user's functions make of samples (`transforms`), and of datasets
that wait (`waiting`). A room is imported where a loader needs it.

No worker imports this module: it unpickles the one source that it reads from.
"""
