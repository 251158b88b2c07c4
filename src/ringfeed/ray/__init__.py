"""Workers on the nodes of a cluster: a bridge beside the training claims rows, and actors make them.

    training                   bridge (one worker id, many claims)                     node(s)
     ring, slots ◀─ memfd ─▶   claims ──▶ Dispatch: which actor ──▶ Fleet.call ──────▶ Desk: the source's own reader,
                               publishes ◀── rows copied into the slot ◀── events ◀─── over a private buffer

options      `ringfeed.Ray`, checked
pace         how batches are cut into tickets for actors
pool         the loader's pool: worker processes here, and bridges, each supervised as a worker process is
bridge_main  the start of a bridge's process: its guard first
bridge       what it does: a thread that claims, one that lands answers, and the main thread, which hires and listens
claims       the tickets that it holds, under one worker id; land what has come of them
_land        rows out of an actor's slot, and into a slot of the training's
dispatch     which calls to make, again after a death or beside a late one: pure decisions, without clocks and processes
actors       what each is at, which are late, and which is to make a job: pure, too
answers      how long calls take, and how many an actor is to have at a time: pure
placing      which node the next actor goes to: pure
desk         the actor's side
private      its slot, a ring of its own
filled       what it answers
fleet        what a bridge asks of a cluster
ray_fleet    the same by Ray, connected by connection: only these two import it

The engine knows a `workers.pool.Remote` alone; nothing imports this package but `ringfeed` itself.
"""
