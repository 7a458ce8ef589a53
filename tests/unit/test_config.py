"""Settings: defaults, bad values, unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hicache_obs import config

DEFAULTS = config.Config(
    enabled=True,
    draft_fix="auto",
    state_dir=None,
    state_group="",
    journal_max_bytes=64 * 1024 * 1024,
    prometheus="auto",
    log_level="warning",
)
VARIABLES = [setting.variable for setting in config.SETTINGS]


def test_defaults() -> None:
    assert config.load({}) == DEFAULTS


def test_empty_is_unset() -> None:
    assert config.load(dict.fromkeys(VARIABLES, "")) == DEFAULTS


def test_other_variables_are_not_ours() -> None:
    assert config.load({"HICACHE_OBSERVE": "1", "SGLANG_PLUGINS": "x"}) == DEFAULTS


def test_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_OBS_DRAFT_FIX", "off")
    assert config.load().draft_fix == "off"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ENABLED", "0", False),
        ("ENABLED", "off", False),
        ("ENABLED", " TRUE ", True),
        ("DRAFT_FIX", "Always", "always"),
        ("STATE_DIR", "/srv/obs", Path("/srv/obs")),
        ("STATE_DIR", "~/obs", Path.home() / "obs"),
        ("STATE_GROUP", " monitoring ", "monitoring"),
        ("JOURNAL_MAX_BYTES", "64MiB", 67108864),
        ("JOURNAL_MAX_BYTES", "64 mib", 67108864),
        ("JOURNAL_MAX_BYTES", "1024", 1024),
        ("JOURNAL_MAX_BYTES", "2KiB", 2048),
        ("JOURNAL_MAX_BYTES", "1GiB", 1 << 30),
        ("PROMETHEUS", "off", "off"),
        ("LOG_LEVEL", "DEBUG", "debug"),
    ],
)
def test_good_value(name: str, text: str, value: object) -> None:
    loaded = config.load({config.PREFIX + name: text})
    assert getattr(loaded, name.lower()) == value
    assert loaded.problems == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ENABLED", "maybe"),
        ("ENABLED", "2"),
        ("DRAFT_FIX", "yes"),
        ("STATE_DIR", "relative/dir"),
        ("STATE_DIR", "~nobody-of-this-name/obs"),
        ("JOURNAL_MAX_BYTES", "0"),
        ("JOURNAL_MAX_BYTES", "0MiB"),
        ("JOURNAL_MAX_BYTES", "-1"),
        ("JOURNAL_MAX_BYTES", "1.5GiB"),
        ("JOURNAL_MAX_BYTES", "1e6"),
        ("JOURNAL_MAX_BYTES", "MiB"),
        ("JOURNAL_MAX_BYTES", "64MB"),
        ("JOURNAL_MAX_BYTES", "٤٢"),
        ("JOURNAL_MAX_BYTES", "\uff19" * 5000),
        ("JOURNAL_MAX_BYTES", "9" * 5000),
        ("PROMETHEUS", "on"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_bad_value_gives_default_and_one_problem(name: str, text: str) -> None:
    loaded = config.load({config.PREFIX + name: text})
    assert getattr(loaded, name.lower()) == getattr(DEFAULTS, name.lower())
    (problem,) = loaded.problems
    assert config.PREFIX + name in problem
    assert repr(text[:80]) in problem
    assert "use one of" in problem or "use 1 or 0" in problem or "use a" in problem
    assert "using the default" in problem
    assert "\n" not in problem
    assert len(problem) < 500


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HICACHE_OBS_DRAFTFIX", "HICACHE_OBS_DRAFT_FIX"),
        ("HICACHE_OBS_STATEDIR", "HICACHE_OBS_STATE_DIR"),
        ("HICACHE_OBS_JOURNAL_MAX_BYTE", "HICACHE_OBS_JOURNAL_MAX_BYTES"),
    ],
)
def test_unknown_name_gets_a_hint(name: str, meant: str) -> None:
    loaded = config.load({name: "1"})
    (problem,) = loaded.problems
    assert problem.startswith(name)
    assert f"did you mean {meant}?" in problem


def test_unknown_name_far_from_all_lists_the_known() -> None:
    (problem,) = config.load({"HICACHE_OBS_" + "Q" * 60: "1"}).problems
    assert all(variable in problem for variable in VARIABLES)


def test_each_problem_is_told() -> None:
    loaded = config.load({"HICACHE_OBS_ENABLED": "?", "HICACHE_OBS_LOG_LEVEL": "?", PREFIXED: ""})
    assert len(loaded.problems) == 3


PREFIXED = config.PREFIX + "NOT_A_SETTING"


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=40)))
@example({"HICACHE_OBS_STATE_DIR": "~\udcff/x"})
@example({"HICACHE_OBS_STATE_DIR": "/a\0b"})
def test_nothing_raises(environ: dict[str, str]) -> None:
    loaded = config.load(environ)
    assert len(loaded.problems) <= len(environ)
    assert loaded.journal_max_bytes > 0


def test_every_setting_says_what_it_means() -> None:
    assert all(setting.meaning for setting in config.SETTINGS)
    assert len(set(VARIABLES)) == len(VARIABLES)
