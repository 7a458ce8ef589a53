"""The observer of each hook point of ``sglang_targets``; imported at the first hooked call."""

from hicache_obs.hooks import (
    allocators,
    draft,
    pinning,
    pools,
    registration,
    setup,
    transport,
    worker,
)
from hicache_obs.hooks.around import Observer

OBSERVERS: dict[str, Observer] = {
    "worker": worker.scheduler_init,
    "host_pool": pools.host_pool,
    "pool_destroy": pools.destroy,
    "allocator_choice": allocators.choice,
    "allocate": allocators.allocate,
    "pin": pinning.host_register,
    "transfer_engine": transport.initialize,
    "store_init": setup.store_init,
    "store_warmup": setup.warmup,
    "register_anchor": registration.anchor,
    "register_side_pool": registration.side_pool,
    "register_buffer": registration.buffer,
    "draft_builder": draft.builder,
}
