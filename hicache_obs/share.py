"""Files that travel with the package: rules, dashboards and the bench that the demo runs."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"deploy": "deploy", "dashboards": "dashboards", "bench": "tests/sglang/bench"}


def share(name: str) -> Path:
    """The folder *name* (``deploy``, ``dashboards``, ``bench``), in the wheel or in a checkout.

    Raises:
        FileNotFoundError: neither has it.
    """
    for path in (_PACKAGE / "_share" / name, _PACKAGE.parent / _CHECKOUT[name]):
        if path.is_dir():
            return path
    raise FileNotFoundError(f"this installation of hicache-obs lacks its {name} folder")
