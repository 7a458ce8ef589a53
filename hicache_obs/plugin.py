"""The SGLang plug-in: entry point ``hicache_obs`` in group ``sglang.srt.plugins``.

``pip install hicache-obs`` is the whole installation. SGLang calls ``register`` early in every
process (``load_plugins``, 0.5.11 to 0.5.23), before it has parsed its arguments and before it
sets PROMETHEUS_MULTIPROC_DIR. So nothing is imported here but the standard library and us, and
no SGLang module: hooks on modules that are not loaded yet wait for SGLang's own import.

``SGLANG_PLUGINS`` without our name, or ``HICACHE_OBS_ENABLED=0``, switches it off.
"""

from __future__ import annotations

import sys

from hicache_obs import config, faults


def register() -> None:
    """Put the hooks of this SGLang release in place. Never raises."""
    try:
        settings = config.load()
        faults.logger.setLevel(settings.log_level.upper())
        if not settings.enabled:
            return
        _install(settings)
    except Exception as error:  # noqa: BLE001 - SGLang starts, with or without us
        faults.count("plugin", error)


def _install(settings: config.Config) -> None:
    from hicache_obs.hooks import install
    from hicache_obs.sglang_targets import targets_for

    for problem in settings.problems:
        faults.logger.warning("hicache-obs: %s", problem)
    release = str(getattr(sys.modules.get("sglang.version"), "__version__", ""))
    install.install(targets_for(release))
