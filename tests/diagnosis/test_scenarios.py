"""The scenario files themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario import SCENARIOS, load, load_all


def test_there_are_as_many_kinds_as_promised() -> None:
    stand_ins = [bool(scenario.stand_in) for scenario in load_all()]
    assert stand_ins.count(False) >= 20
    assert stand_ins.count(True) >= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cause =", "reason ="), "reason"),
        (('"foreign_buffer"', '"gremlins"'), "gremlins"),
        (('sample = "0.5.14"', 'sample = "0.5.23"'), "sample"),
        (('"0.5.13", "0.5.14"', '"0.5.13", "0.5.99"'), "0.5.99"),
        (('way = "server"', 'way = "on foot"'), "on foot"),
        (("kind =", "kind"), "line 1"),
    ],
)
def test_a_bad_file_is_named_and_told_why(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text((SCENARIOS / "draft_default_allocator.toml").read_text().replace(*change))
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        load(bad)
    assert str(bad) in str(raised.value)
