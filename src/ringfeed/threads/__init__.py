"""Worker threads of the consumer's own process: ``backend="thread"``.

    Threads ──▶ thread ──▶ Reader.serve(): claims, reads and publishes as a worker process does

`workers` imports this room where a loader asks for it. Imports only `workers` and what lies below it.
"""
