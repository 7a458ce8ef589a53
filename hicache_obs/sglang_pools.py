"""SGLang's host pool classes: where each lives in which release, and what it is called.

Data only, read from the wheels of the releases that ``sglang_targets`` names. A constructor here
is one that the class defines itself; an inherited one is hooked where it is defined.
"""

from __future__ import annotations

from typing import NamedTuple

_MC = "sglang.srt.mem_cache."
_OLD = _MC + "memory_pool_host"
_NEW = _MC + "pool_host."


class Place(NamedTuple):
    """A module that holds a class from *since* to *until*, both included ("": still so)."""

    module: str
    since: str
    until: str = ""


class PoolClass(NamedTuple):
    """A host pool class. *pool* is its PoolName where nothing says more; *destroy*: the release
    from which it has a ``destroy`` of its own, "" if never."""

    name: str
    pool: str
    places: tuple[Place, ...]
    destroy: str = ""


POOL_CLASSES = (
    PoolClass(
        "HostKVCache",
        "other",
        (Place(_OLD, "0.5.11", "0.5.13"), Place(_NEW + "base", "0.5.14")),
        destroy="0.5.14",
    ),
    PoolClass(
        "MHATokenToKVPoolHost",
        "kv",
        (Place(_OLD, "0.5.11", "0.5.15"), Place(_NEW + "mha", "0.5.16")),
    ),
    PoolClass(
        "MLATokenToKVPoolHost",
        "kv",
        (Place(_OLD, "0.5.11", "0.5.15"), Place(_NEW + "mla", "0.5.16")),
    ),
    PoolClass(
        "MambaPoolHost",
        "mamba",
        (Place(_OLD, "0.5.11", "0.5.16"), Place(_NEW + "mamba", "0.5.18")),
    ),
    PoolClass("NSAIndexerPoolHost", "indexer", (Place(_OLD, "0.5.11", "0.5.12"),)),
    PoolClass(
        "DSAIndexerPoolHost",
        "indexer",
        (Place(_OLD, "0.5.13", "0.5.18"), Place(_NEW + "dsa", "0.5.20")),
        destroy="0.5.22",
    ),
    PoolClass("LogicalHostPool", "kv", (Place(_OLD, "0.5.12"),), destroy="0.5.18"),
    PoolClass("DeepSeekV4PagedHostPool", "other", (Place(_OLD, "0.5.12"),)),
    PoolClass("DeepSeekV4StateHostPool", "other", (Place(_OLD, "0.5.12"),)),
    PoolClass(
        "DeepSeekV4SingleKVPoolHost",
        "hisparse",
        (Place(_MC + "hisparse_memory_pool", "0.5.12", "0.5.12"),),
    ),
    PoolClass(
        "MHATokenToKOnlyPoolHost",
        "indexer",
        (Place(_OLD, "0.5.15", "0.5.15"), Place(_NEW + "mha", "0.5.16")),
        destroy="0.5.22",
    ),
    PoolClass("HiSparseMHATokenToKVPoolHost", "hisparse", (Place(_NEW + "mha", "0.5.21"),)),
    PoolClass(
        "MHATokenToKVPoolMXFP8Host", "kv", (Place(_NEW + "mha_mxfp8", "0.5.21"),), destroy="0.5.21"
    ),
    PoolClass(
        "UnifiedPageEnvelopeHostPool", "kv", (Place(_NEW + "unified", "0.5.21"),), destroy="0.5.21"
    ),
    PoolClass("QSAIndexerPoolHost", "indexer", (Place(_NEW + "qsa", "0.5.22"),)),
    PoolClass(
        "MiniMaxM3Nvfp4IndexKPoolHost", "indexer", (Place(_NEW + "minimax_m3_nvfp4", "0.5.23"),)
    ),
    PoolClass("MiniMaxM3Nvfp4MainKVPoolHost", "kv", (Place(_NEW + "minimax_m3_nvfp4", "0.5.23"),)),
)

BACKING = (Place(_NEW + "unified", "0.5.21"),)
"""``_SharedPageEnvelopeHostBacking``: the memory of unified page envelopes, one allocation under
the pools ``full`` and ``swa``."""

GROUP = (Place(_OLD, "0.5.11", "0.5.18"), Place(_NEW + "group", "0.5.20"))
"""``HostPoolGroup``: an anchor and its side pools, each with its PoolName."""

NOT_HOOKED = {
    "AsymmetricMHATokenToKVPoolHost": "has no constructor of its own: MHATokenToKVPoolHost's runs",
    "HiSparseHostPoolMixin": "a mix-in without a constructor",
    "PageInterleaveHostPool": "holds no memory: the pool that it stands before is followed",
    "BaseHostCache": "keeps routed experts and the like, no KV cache",
    "_RoutedExpertsHostCache": "keeps routed experts, no KV cache",
}
"""Classes of SGLang that are named like a host pool and are not hooked, with the reason."""

FACADE = "host_pool"
"""Attribute of a facade (PageInterleaveHostPool) that leads to the pool behind it."""

BUFFERS = (
    "kv_buffer",
    "k_buffer",
    "v_buffer",
    "temporal_buffer",
    "conv_buffer",
    "slot_state_buffers",
    "index_k_with_scale_buffer",
    "k_scale_host",
    "v_scale_host",
)
"""Attributes that hold a pool's own buffers: a tensor, a list of tensors, or None."""

SHARED_BUFFER = ("_shared_backing", "raw")
"""Attribute of a pool over shared memory, and that of the memory in it."""

POOL_NAMES = frozenset(
    {
        *("kv", "mamba", "swa", "auxiliary_swa", "indexer", "draft", "draft_indexer", "draft_swa"),
        *(
            f"deepseek_v4_{part}"
            for part in (
                *("c1", "c1_indexer", "c1_indexer_scale", "c2", "c2_indexer", "c2_indexer_scale"),
                *("c4", "c4_indexer", "c4_indexer_scale", "c4_rope", "c4_state"),
                *("c4_indexer_state", "c128", "c128_rope", "c128_state"),
            )
        ),
    }
)
"""SGLang's PoolName (mem_cache/hicache_storage.py, 0.5.11 to 0.5.23, joined)."""

OUTSIDE = {"decode_offload", "hisparse"}
"""Pools of owners outside the cache tree; theirs is no PoolName."""

OTHER = "other"
"""A pool of a class or name that is not known here."""

_BY_NAME = {found.name: found for found in POOL_CLASSES}


def pool_of_class(name: str) -> str:
    """The pool that a class is for where nothing says more; ``other`` for one not known."""
    found = _BY_NAME.get(name)
    return found.pool if found else OTHER


def pool_label(name: str) -> str:
    """A pool's name as a label: a PoolName of SGLang or one of ours, else ``other``."""
    return name if name in POOL_NAMES or name in OUTSIDE else OTHER
