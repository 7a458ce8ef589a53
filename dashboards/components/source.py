"""What every component does with the part of a source that it is given."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from hicache_obs.rules import RUNBOOKS

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
NUMBER = int | float

Schema = Mapping[str, type | types.UnionType]
"""The keys of a mapping, with the type of each value."""


def address(url: str) -> str:
    """*url* with ``RUNBOOKS`` for the folder of the runbooks."""
    return url.replace("RUNBOOKS", RUNBOOKS)


class SourceError(ValueError):
    """A dashboard source that cannot be built; the text names the key."""


def checked(what: str, data: Any, required: Schema, optional: Schema | None = None) -> Any:
    """*data*, a mapping with every *required* key and no other than those and the *optional* ones.

    Raises:
        SourceError: it is not; the text begins with *what*.
    """
    if not isinstance(data, Mapping):
        raise SourceError(f"{what}: a mapping is wanted, not {data!r}")
    known = {**required, **(optional or {})}
    for key, value in data.items():
        if key not in known:
            raise SourceError(f"{what}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        if value in (None, "", [], {}):
            raise SourceError(f"{what}: key {key!r} is missing or empty")
        kind = known[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = getattr(kind, "__name__", kind)
            raise SourceError(f"{what}: key {key!r} is {value!r}, which is no {wanted}")
    for key in required:
        if key not in data:
            raise SourceError(f"{what}: key {key!r} is missing or empty")
    return data


def components(what: str, data: list[Any]) -> None:
    """Check that each of *data* is one component: a kind with what it is made of.

    Raises:
        SourceError: one is not. The library would take a text for the name of another component.
    """
    for number, one in enumerate(data, 1):
        if not isinstance(one, Mapping) or len(one) != 1 or not isinstance(next(iter(one)), str):
            raise SourceError(f"{what}: entry {number} is no component: {one!r}")
