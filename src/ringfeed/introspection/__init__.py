"""Which worker a thread is, for the user's code: `ringfeed.worker_info`, and torch's ``get_worker_info()``.

    Reader, before its first claim ──▶ introduce() ──▶ worker_info   by thread, or by task
                                             └───────▶ torch_info    of a worker process, once torch is there

`data` imports this room in a worker that begins. Imports only `orders`.
"""
