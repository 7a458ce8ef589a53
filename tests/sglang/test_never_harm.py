"""Whatever is wrong with us or our surroundings, SGLang's outcome is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Start
from test_second_plugin import plugin

SABOTAGE = """
import hicache_obs.{module} as module

def broken(*args, **kwargs):
    raise RuntimeError("sabotage")

def register():
    target = module
    for name in {path!r}.split(".")[:-1]:
        target = getattr(target, name)
    setattr(target, {path!r}.split(".")[-1], broken)
"""

PLACES = {
    "ledger": ("ledger", "Ledger.add_segment"),
    "pools": ("ledger", "Ledger.add_pool"),
    "held": ("ledger", "Ledger.held"),
    "allocator": ("classify", "allocator_label"),
    "line": ("wire", "to_line"),
    "append": ("journal", "JournalWriter.hand_over"),
    "open": ("runs", "choose_state_dir"),
    "updates": ("recorder", "updates"),
    "live": ("live", "LiveApplier.apply"),
    "live_made": ("live", "LiveApplier.__init__"),
    "stale": ("live", "remove_stale_gauges"),
    "memory": ("hooks.memory", "address_and_size"),
    "role": ("hooks.scope", "name_pool"),
    "labels": ("hooks.worker", "describe"),
    "report": ("hooks.install", "report"),
    "recognise": ("draft_builder", "recognise"),
    "recorder": ("recorder", "get"),
}
IN_SAMPLE = {"ledger", "line", "labels", "recorder"}


@pytest.mark.parametrize(
    "place", [p if p in IN_SAMPLE else pytest.param(p, marks=pytest.mark.full) for p in PLACES]
)
def test_a_fault_of_ours_changes_nothing(start: Start, tmp_path: Path, place: str) -> None:
    module, path = PLACES[place]
    code = SABOTAGE.format(module=module, path=path)
    sabotage = plugin(tmp_path, "sabotage", "sabotage:register", code)

    # 0.5.16 has the fix upstream: with every one of our parts broken the server must stand.
    run = start("0.5.16", draft="mha", paths=[sabotage])

    assert run.ready, run.log[-3000:]
    assert run.returncode == 0
    assert run.log.count("sabotage") >= 1
    told = [line for line in run.log.splitlines() if "hicache-obs:" in line]
    places = [line.split("hicache-obs: ")[1].split(":")[0] for line in told]
    assert len(places) == len(set(places)), "a fault is logged once a place"
    assert "Traceback" not in "".join(told)


@pytest.mark.parametrize(
    "path",
    [
        "ledger.Ledger.provenance",
        pytest.param("classify.registration_cause", marks=pytest.mark.full),
    ],
)
def test_a_fault_in_the_diagnosis_leaves_the_failure(
    start: Start, tmp_path: Path, path: str
) -> None:
    module, _, rest = path.partition(".")
    code = SABOTAGE.format(module=module, path=rest)
    sabotage = plugin(tmp_path, "sabotage", "sabotage:register", code)
    env = {"HICACHE_OBS_DRAFT_FIX": "off"}

    run = start("0.5.14", draft="mha", env=env, paths=[sabotage])

    assert not run.ready
    assert "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1" in run.log
    assert run.value("hicache_obs_errors_total", where="diagnose") == 1
    assert run.value("hicache_failure_active", stage="registration", code="-1") == 1
    (told,) = run.of("registration", outcome="failure")
    assert told["cause"] == "unknown"


def test_an_unusable_state_directory(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    run = start("0.5.14", draft="mha", env={"HICACHE_OBS_STATE_DIR": str(tmp_path / "file/state")})

    assert run.ready, run.log[-2000:]
    assert run.value("hicache_pool_registered", role="draft") == 1
    assert run.value("hicache_obs_errors_total", where="journal_open") == 1
    assert run.value("hicache_obs_journal_lost_events_total") > 10
    assert run.log.count("hicache-obs: journal_open") == 1


def test_malformed_settings(start: Start) -> None:
    env = {
        "HICACHE_OBS_DRAFT_FIX": "maybe",
        "HICACHE_OBS_JOURNAL_MAX_BYTES": "lots",
        "HICACHE_OBS_STATE_DRI": "/nowhere",
        "HICACHE_OBS_STATE_GROUP": "no-such-group",
    }
    run = start("0.5.14", draft="mha", env=env)

    assert run.ready, "the default of DRAFT_FIX is auto"
    assert run.value("hicache_draft_builder_info", state="applied") == 1
    assert run.value("hicache_obs_errors_total", where="config") == 3
    assert run.value("hicache_obs_errors_total", where="state_group") >= 1
    for name in ("DRAFT_FIX", "JOURNAL_MAX_BYTES", "STATE_DRI"):
        told = [line for line in run.log.splitlines() if f"HICACHE_OBS_{name}" in line]
        assert told, name
    assert "did you mean HICACHE_OBS_STATE_DIR?" in run.log
