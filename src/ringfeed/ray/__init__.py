"""Workers on the nodes of a cluster: a bridge here claims rows, and actors make them.

    training             bridge (one worker id, many claims)                node(s)
    ring, slots ◀ memfd ▶ claims ──▶ Dispatch: which actor ──▶ RayFleet ──▶ Desk: the source's
                          publishes ◀── the rows, in the slot ◀── answers ◀── reader, in a slot

options    `ringfeed.ray.Ray`, checked
pace       how batches are cut into tickets for actors
pool       the loader's pool: worker processes here, and bridges, supervised alike
bridge     the bridge itself: one thread claims, one lands answers, the main one hires and listens
board      the bridge's report on its actors and on slow calls
stats      that report for the user, in numbers and words
claims     the tickets that the bridge holds, under one worker id
landing    what an actor answers; its rows into a slot of the training's
dispatch   which actor makes which rows, also after a death and beside a late one; has no clock
crew       the bridge's actors, hired and counted
hiring     how many actors there are, and on which nodes; has no clock
desk       sends the dataset to actors, and reads it there
ray_fleet  nodes, actors and calls by Ray, which only this imports

The engine knows a `workers.pool.Remote` alone; nothing imports this package but `ringfeed` itself.
"""

from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.ray.options import Ray

__all__ = ["Ray"]

__getattr__ = importing("ringfeed.ray", {"Ray": "options"})
