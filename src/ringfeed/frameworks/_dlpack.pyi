from ringfeed.ring._ring import Lease
from ringfeed.spec.array import AnyArray

def capsule(lease: Lease, array: AnyArray, code: int, bits: int) -> object: ...
