"""The command `ringfeed`: plan, profile and watch loaders from a terminal.

    main ──▶ plan_table                    bytes of many settings, before there is a loader
         ──▶ profile                       where the time of a sample goes, before there are workers
         ──▶ testing.checking              what is wrong with a dataset, before the run
         ──▶ migrate                       the diff of a script of another loader; by libcst
         ──▶ loaders, script               a DataLoader or a PyDataset as it is, beside ringfeed:
                torch_subject, keras_subject ──▶ reading
         ──▶ top ──▶ discover, render      a running loader of another process, drawn by rich

Like `keras` and `torch` it makes Loaders of its own.
"""
