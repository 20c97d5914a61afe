"""The prefix cache: which token sequences have their keys and values in which pages.

Knows nothing of requests, tensors or devices: token ids and page numbers only.
"""

from .ghosts import EvictionCause, Ghost, Ghosts
from .key import Key
from .node import Namespace, Node
from .policy import EvictionPolicy, Lfu, Lru
from .pool import PagePool
from .reuse import ReuseDistances
from .snapshot import Snapshot, snapshot
from .tree import Insertion, Listener, Match, RadixCache

__all__ = [
    "EvictionCause",
    "EvictionPolicy",
    "Ghost",
    "Ghosts",
    "Insertion",
    "Key",
    "Lfu",
    "Listener",
    "Lru",
    "Match",
    "Namespace",
    "Node",
    "PagePool",
    "RadixCache",
    "ReuseDistances",
    "Snapshot",
    "snapshot",
]
