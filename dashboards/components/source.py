"""What every component does with the part of a source that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hicache_obs.rules import RUNBOOKS

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def address(url: str) -> str:
    """*url* with ``RUNBOOKS`` for the folder of the runbooks."""
    return url.replace("RUNBOOKS", RUNBOOKS)


class SourceError(ValueError):
    """A dashboard source that cannot be built; the text names the key."""


def checked(
    what: str, data: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
) -> Mapping[str, Any]:
    """*data*, if it has every *required* key, and no other than those and the *optional* ones.

    Raises:
        SourceError: it has not; the text begins with *what*.
    """
    if not isinstance(data, Mapping):
        raise SourceError(f"{what}: a mapping is wanted, not {data!r}")
    known = {*required, *optional}
    for key in data:
        if key not in known:
            raise SourceError(f"{what}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    for key in required:
        if data.get(key) in (None, "", []):
            raise SourceError(f"{what}: key {key!r} is missing or empty")
    return data
