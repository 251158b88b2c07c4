"""Workers on the nodes of a cluster: a bridge beside the training claims rows, and actors make them.

    training                   bridge (one worker id, many claims)                     node(s)
     ring, slots ◀─ memfd ─▶   claims ──▶ Dispatch: which actor ──▶ Fleet.call ──────▶ Desk: the source's own reader,
                               publishes ◀── rows copied into the slot ◀── events ◀─── over a private buffer

options      `ringfeed.Ray`, checked
sizing       how many slots and tickets keep so many actors busy
pool         the loader's pool: worker processes here, and bridges, each supervised as a worker process is
bridge       the process: a thread that claims, one that lands answers, and the main thread, which hires and listens
ticket       one of its claims, and the rows of it that are under way
landing      answers written into slots
dispatch     windows, hedges, retries and suspects: pure decisions, without clocks and processes
placing      which node the next actor goes to: pure, too
desk         the actor's side
fleet        what a bridge asks of a cluster
ray_fleet    the same by Ray: the only module that imports it
"""
