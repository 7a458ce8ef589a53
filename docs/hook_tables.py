"""The parts of docs/hooks.md that the hook tables know: what is hooked where in which release."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from hicache_obs.sglang_backends import REGISTERING
from hicache_obs.sglang_pools import NOT_HOOKED, OTHER, OUTSIDE, POOL_CLASSES, POOL_NAMES, Place
from hicache_obs.sglang_targets import RELEASES, TARGETS, Target, release_key

_POOLS = ("host_pool", "pool_destroy")
"""Points that have a table of their own, by class."""

LEARNT = {
    "worker": "ranks, model and settings of the worker; that it got past HiCache start-up",
    "host_backing": "the one allocation under two pools: counted once",
    "pool_group": "the PoolName of each pool in the group",
    "pool_group_entry": "the PoolName of a side pool that comes later",
    "decode_offload": "that pools built here are `decode_offload`",
    "hisparse": "that pools built here are `hisparse`",
    "allocator_choice": "allocator asked for and got; here the draft fix is applied",
    "allocate": "segment: address, bytes, allocator; null pointers",
    "allocate_pinned": "memory past the allocator (NPU, MUSA, XPU): `torch_pinned`",
    "allocate_hip": "memory past the allocator (ROCm): `hip`",
    "allocate_memfabric": "memory past the allocator (NPU): `other`",
    "hugepages": "huge pages asked for and not got",
    "hugepages_shm": "huge pages asked for where shared memory has none",
    "pin": "page-locking of a pool: bytes, chunks, code",
    "pin_inline": "as `_cuda_host_register`, where page-locking has no function of its own",
    "cudart": "what cudaHostRegister answered, while a host pool is page-locked",
    "transfer_engine": "protocol asked for and the one in use; a hang or crash in it",
    "store_init": "set-up of the store: mode, code, cause",
    "store_warmup": "a hang or crash in the first put and get",
    "register_anchor": "registration of the target's pool: role and name",
    "register_side_pool": "registration of any other pool: role and name",
    "register_buffer": "each buffer registered with the store: bytes, code, cause",
    "direct_linker": "that what is registered now is the linker's GPU memory",
    "store_native": "each buffer of the direct linker: bytes, code, cause",
    "te_register": "a buffer registered with the transfer engine: bytes, code, cause",
    "te_batch_register": "as `register_memory`, of several buffers",
    "te_unregister": "a buffer that is registered no more",
    "te_batch_unregister": "buffers that are registered no more",
    "create_backend": "the backend's class, whose registering methods are hooked then (see below)",
    "attach": "a storage backend that was attached, or could not be",
    "detach": "a storage backend that was detached, and what was registered with it",
    "draft_builder": "that pools built here are the draft's; whether SGLang has the defect",
}
"""What the observer of a point tells; a point without a word here fails the generation."""


def table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def releases_of(since: str, until: str = "") -> set[str]:
    """The tested releases from *since* to *until*, both included ("": still so)."""
    low, high = release_key(since), release_key(until or RELEASES[-1])
    return {release for release in RELEASES if low <= release_key(release) <= high}


def spans(seen: Iterable[str]) -> str:
    """Releases in few words: ``all``, ``0.5.13+``, ``to 0.5.18``, ``0.5.13 to 0.5.18``, ``0.5.12``.

    Raises:
        ValueError: there are none.
    """
    found = set(seen)
    runs = [list(run) for there, run in groupby(RELEASES, found.__contains__) if there]
    if not runs:
        raise ValueError("a row that no tested release has")
    return ", ".join(_span(run[0], run[-1]) for run in runs)


def _span(first: str, last: str) -> str:
    if (first, last) == (RELEASES[0], RELEASES[-1]):
        return "all"
    if last == RELEASES[-1]:
        return f"{first}+"
    if first == last:
        return first
    return f"to {last}" if first == RELEASES[0] else f"{first} to {last}"


def points() -> str:
    """Hook points but for those of host pools; what has moved is one row."""
    rows: dict[tuple[str, str], list[Target]] = {}
    for target in TARGETS:
        if target.point not in _POOLS:
            rows.setdefault((target.point, target.name), []).append(target)
    lines = []
    for (point, name), targets in rows.items():
        places = [Place(target.module, target.since, target.until) for target in targets]
        lines.append(f"| {_modules(places)} | `{name}` | {LEARNT[point]} | {_all_of(places)} |")
    return table("| module | name | what is learnt | releases |", lines)


def pools() -> str:
    rows = [
        f"| `{pool.name}` | `{pool.pool}` | {_modules(pool.places)} | {_all_of(pool.places)} "
        f"| {spans(releases_of(pool.destroy)) if pool.destroy else ''} |"
        for pool in POOL_CLASSES
    ]
    return table("| class | pool | module | releases | its own `destroy` |", rows)


def pools_not_hooked() -> str:
    rows = [f"| `{name}` | {reason} |" for name, reason in NOT_HOOKED.items()]
    return table("| class | why not |", rows)


def pool_labels() -> str:
    return ", ".join(f"`{name}`" for name in (*sorted(POOL_NAMES), *sorted(OUTSIDE), OTHER))


def backends() -> str:
    rows = []
    for name, vendor in REGISTERING.items():
        side = spans(releases_of(vendor.side_pools)) if vendor.side_pools else ""
        refusal = "SGLang raises"
        if vendor.method and not vendor.zero_copy:
            refusal = f"the library's `{vendor.method}` answers False or raises; SGLang goes on"
        rows.append(f"| `{name}` | {spans(releases_of(vendor.since))} | {side} | {refusal} |")
    return table("| backend | the target's pool | other pools | a refusal is seen where |", rows)


def _all_of(places: Iterable[Place]) -> str:
    return spans(r for place in places for r in releases_of(place.since, place.until))


def _modules(places: Iterable[Place]) -> str:
    """The modules, each with its releases where it has not all of the row's."""
    found = tuple(places)
    whole = _all_of(found)
    told = []
    for place in found:
        own = spans(releases_of(place.since, place.until))
        module = f"`{place.module.removeprefix('sglang.srt.')}`"
        told.append(module if own == whole else f"{module} ({own})")
    return ", ".join(told)


TABLES = {
    "hook-points": points,
    "pool-classes": pools,
    "pools-not-hooked": pools_not_hooked,
    "pool-labels": pool_labels,
    "backends": backends,
}
