"""One loader for several trainings of a host: `share`.

    training 0 ──┐ socket: small messages        host process             its workers
    training 1 ──┼──────────────────────────▶ one Loader ── ring ──▶ worker, worker, ...
    training 2 ──┘ ◀── descriptor of the slots, once      │
         │                                                ▼
         └───────── reads the slots, mapped copy-on-write ┘

`names`: the first training to bind a socket of the share's name starts the host process; the others
connect to it. It is no child of any of them: it ends when the last connection has gone, whatever
ended the trainings, and its workers end with it. All trainings are equal.

Of each batch a training gets a message of a hundred bytes. Its arrays lie over the slot, in a
private mapping: what it writes there, it alone sees, and `mapping` throws these pages away before
the slot is filled again. The slot goes back to the ring when each training has let go of it, or has
gone.

`flow` decides which training gets what and when, without sockets: epochs begin when all have asked
for the next one; ``slots - 1`` batches at most are out of the ring, so that the workers have a slot
to fill; a training is sent one batch ahead of the one that it has. If one is
slower than the others, they wait for it, or it loses batches, or it is disconnected.

    in a training   door (`share`), client (`SharedLoader`), epoch, mapping
    in the host     start, host (sockets; a thread takes batches), host_loader, flow
    in both         names, terms

In mode "split" a batch of the loader is a global batch, and each training reads its own rows of it.
"""
