"""``hicache-obs explain``, on lines that SGLang, Mooncake and hicache-obs have printed."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hicache_obs.causes import CAUSES
from hicache_obs.cli.explain import BLOCK, LONGEST, explain, search
from hicache_obs.codes import meanings
from hicache_obs.rules import RUNBOOKS
from hicache_obs.rules.of_failure import by_name

STAMP = "[2026-12-01 09:53:26] "
WARMED_UP = "[2026-12-01 09:53:25] Mooncake store warmup successfully."
MISMATCH = (
    f"{STAMP}hicache-obs: the draft host pool (pool draft) has allocator default where mooncake "
    "is needed (draft_differs_from_target); a standalone Mooncake client will refuse it"
)
NOT_MINE = (
    "E1201 09:53:26.439179 10329 dummy_client.cpp:716] Buffer is not in any registered shared "
    "memory"
)
REFUSED = f"{STAMP}Failed to register buffer, error code: -1"
TOLD = (
    f"{STAMP}hicache-obs: registration of the draft host pool (pool draft, allocator default, "
    "1114112 bytes) failed: code -1, cause foreign_buffer"
)
HIT = f"{STAMP}Scheduler hit an exception: Traceback (most recent call last):"
RAISED = "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1"
QUIT = "Received sigquit from a child process. It usually means the child failed."
DEMO = [WARMED_UP, MISMATCH, NOT_MINE, REFUSED, TOLD, HIT, RAISED, "", QUIT]
"""From the log of the server that `hicache-obs demo` starts without the fix."""

HEALTHY = f"""\
I1201 09:53:40.541270 10502 dummy_client.cpp:414] Connecting to IPC socket: @mooncake_client_1.sock
I1201 09:53:40.541345 10502 dummy_client.cpp:457] Successfully registered SHM via IPC, base: 0x7f88
E1201 09:53:40.541460 10502 dummy_client.cpp:1563] Failed to receive hot cache fd, status=-1
[2026-12-01 09:53:40] Mooncake store setup successfully.
{WARMED_UP}
[2026-12-01 09:53:41] Allocating 0.00 GB host memory for hierarchical KV cache.
[2026-12-01 09:53:41] HiCache draft KV registered: MHATokenToKVPool (host 2176 slots)
E1201 09:53:08.837893 10278 transfer_metadata.cpp:1098] Local segment descriptor not found
"""
"""From the log of the same server with the fix, which became ready."""


def run(*words: str, log: str | bytes | None = None) -> Result:
    return CliRunner().invoke(explain, words, input=log)


def found(log: str) -> list[dict[str, Any]]:
    done = run("--json", log=log)
    assert done.exit_code == (0 if json.loads(done.stdout)["found"] else 1)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["found"]
    return rows


def causes(row: dict[str, Any]) -> list[str]:
    return [cause["name"] for cause in row["causes"]]


# Words


def test_a_code_is_told_in_all_its_spaces() -> None:
    done = run("-1")
    assert done.exit_code == 0
    assert "-1  INTERNAL_ERROR  (Mooncake store)" in done.stdout
    assert "-1  INVALID_ARGUMENT  (Mooncake transfer engine)" in done.stdout
    assert "may be: foreign_buffer, segment_size_mismatch," in done.stdout


@pytest.mark.parametrize("word", ["712", "rc=712", "code=712", "code: 712"])
def test_a_code_as_logs_write_it(word: str) -> None:
    assert "cudaErrorHostMemoryAlreadyRegistered" in run(word).stdout


def test_a_cause_is_told_with_its_remedy() -> None:
    done = run("allocator_required", "-600")
    assert done.exit_code == 0
    assert "do: install Mooncake 0.3.8.post1 or later" in done.stdout
    assert done.stdout.index("allocator_required") < done.stdout.index("INVALID_PARAMS")


def test_a_cause_names_its_alerts_and_where_their_runbooks_are() -> None:
    told = run("null_pointer").stdout
    for alert in ("HiCacheRegistrationFailed", "HiCacheHostPoolAllocationFailed"):
        assert f"    alert: {alert}  {RUNBOOKS}/{alert}.md#null_pointer\n" in told
    assert told.count("alert: ") == 2
    assert "alert: " not in run("peer").stdout


@pytest.mark.parametrize("word", ["HiCacheRegistrationFailed", "hicacheregistrationfailed"])
def test_an_alert_is_told_as_its_runbook_begins(word: str) -> None:
    alert = by_name()["HiCacheRegistrationFailed"]
    assert run(word).stdout == (
        "HiCacheRegistrationFailed  (critical)\n"
        f"    traffic: {alert.traffic}\n"
        f"    do: {alert.first}\n"
        f"    worked: {alert.worked}\n"
        f"    causes: {', '.join(alert.causes)}\n"
        f"    runbook: {RUNBOOKS}/HiCacheRegistrationFailed.md\n"
    )


def test_an_alert_without_causes_names_none() -> None:
    assert "causes: " not in run("HiCacheCrashLoop").stdout


def test_alerts_as_json() -> None:
    alert, cause = json.loads(run("--json", "HiCacheCrashLoop", "pin").stdout)["explained"]
    assert (alert["causes"], alert["codes"]) == ([], [])
    known = by_name()["HiCacheCrashLoop"]
    assert alert["alerts"] == [
        {
            "name": known.name,
            "severity": "critical",
            "traffic": known.traffic,
            "first": known.first,
            "worked": known.worked,
            "causes": [],
            "runbook": f"{RUNBOOKS}/HiCacheCrashLoop.md",
        }
    ]
    assert [one["runbook"] for one in cause["alerts"]] == [
        f"{RUNBOOKS}/HiCachePinningFailed.md#pin"
    ]


def test_words_as_json() -> None:
    row = json.loads(run("--json", "-7").stdout)["explained"][0]
    assert row["word"] == "-7"
    assert row["causes"] == []
    assert row["codes"] == [meanings(-7)[0]._asdict() | {"causes": ["overlap"]}]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("foreign_bufer", "foreign_buffer"),
        ("hicachecrashlop", "HiCacheCrashLoop"),
        ("600", "-600"),
        ("-601x", ""),
        ("-900000001", ""),
    ],
)
def test_an_unknown_word_is_named_with_what_is_like_it(word: str, near: str) -> None:
    done = run(word)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert repr(word) in done.stderr
    assert done.stderr.count("\n") == 1
    if near:
        assert f"did you mean {near}" in done.stderr
    else:
        assert f"causes are: {', '.join(CAUSES)}; alerts are: {', '.join(by_name())}" in done.stderr


def test_nothing_is_told_when_one_word_is_unknown() -> None:
    assert run("-1", "nonsense").stdout == ""


# Logs


def test_the_demonstrations_log() -> None:
    rows = found("\n".join(DEMO))
    assert causes(rows[0]) == ["foreign_buffer"]
    assert rows[0]["certain"]
    assert rows[0]["line"] == 2
    assert [row["line"] for row in rows] == [2, 3, 5, 4, 6]
    refused = rows[3]
    assert (refused["count"], refused["certain"]) == (2, False)
    assert [code["space"] for code in refused["codes"]] == ["store"]
    assert rows[-1]["causes"] == []
    assert rows[-1]["count"] == 2


def test_the_remedy_is_told_once() -> None:
    out = run(log="\n".join(DEMO)).stdout
    assert out.startswith("line 2: ")
    assert out.count("HICACHE_OBS_DRAFT_FIX=auto") == 1
    assert "most likely foreign_buffer, see above" in out


def test_without_the_plugin_mooncakes_own_line_comes_first() -> None:
    rows = found("\n".join([REFUSED, NOT_MINE, RAISED]))
    assert next(causes(row) for row in rows) == ["foreign_buffer"]
    assert rows[0]["text"] == NOT_MINE


def test_without_any_other_line_a_code_narrows_it() -> None:
    row = found(RAISED)[0]
    assert not row["certain"]
    assert causes(row) == list(meanings(-1, "store")[0].causes)
    assert "may be: foreign_buffer: give the pool" in run(log=RAISED).stdout


def test_a_healthy_log_holds_nothing_known() -> None:
    done = run(log=HEALTHY)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "no known failure line" in done.stderr
    assert found(HEALTHY) == []


KNOWN = [
    # (line, causes, certain, code names)
    (TOLD.replace("foreign_buffer", "overlap"), ["overlap"], True, ["INTERNAL_ERROR"]),
    (TOLD.replace("code -1", "code none"), ["foreign_buffer"], True, []),
    (MISMATCH, ["foreign_buffer"], True, []),
    (MISMATCH.replace("draft_differs_from_target", "fallback"), ["allocator_required"], True, []),
    (
        "E0101 dummy_client.cpp:730] Invalid buffer address or size for registration: Buffer "
        "addr: 0x7f00, need addr: 0x7f00, buffer size: 4096, need size: 8192",
        ["segment_size_mismatch"],
        True,
        [],
    ),
    (
        "E0101 dummy_client.cpp:740] Failed to implicitly register new SHM via IPC",
        ["ipc_or_remote_map"],
        True,
        [],
    ),
    (
        "E1201 09:54:59.204830 10916 dummy_client.cpp:474] Failed to connect to real client",
        ["client_unreachable"],
        True,
        [],
    ),
    (
        "E1201 09:56:23.350551 11143 master_client.cpp:361] Client not available",
        ["master_unreachable"],
        True,
        [],
    ),
    (
        "E1201 09:56:17.920161 11113 transfer_engine_impl.cpp:670] Transfer Engine does not "
        "support overlapped memory region",
        ["overlap"],
        True,
        [],
    ),
    (
        "ValueError: Not enough host memory available. Requesting 176.71 GB but only have 105.82 "
        "GB free. Please reduce the size of the hierarchical cache.",
        ["budget"],
        True,
        [],
    ),
    (
        "AssertionError: The host memory should be larger than the device memory with the current "
        "protocol",
        ["too_small"],
        True,
        [],
    ),
    (
        "ValueError: Not enough host memory for V4 paged pool c4. Requesting 7.05 GB but only "
        "have 2.04 GB free.",
        ["budget"],
        True,
        [],
    ),
    (
        "RuntimeError: cudaHostRegister failed (rc=1, invalid argument) at offset=0 "
        "size=34760392704 (total=34760392704, chunk_limit=34760392704)",
        ["pin"],
        True,
        ["cudaErrorInvalidValue"],
    ),
    (
        "rdma_context.cpp:190] Failed to register memory 0x7f12000000: Cannot allocate memory [12]",
        ["transport"],
        True,
        ["ENOMEM"],
    ),
    ("Failed to register memory 0x2e1cbac200: Bad address [14]", ["transport"], True, ["EFAULT"]),
    ("Register mem ret:207000.", ["transport"], True, ["-"]),
    (
        "RuntimeError: MooncakeStore with standalone_storage=True requires "
        "MooncakeHostTensorAllocator. Please set standalone_storage=False or upgrade Mooncake",
        ["allocator_required"],
        True,
        [],
    ),
    (
        "Mooncake's tensor allocator requires mooncake >= 0.3.8.post1. Please upgrade Mooncake by "
        "'pip install mooncake-transfer-engine --upgrade'. Fallback to use default allocator.",
        ["allocator_required", "foreign_buffer"],
        False,
        [],
    ),
    (
        "Failed to setup Mooncake store, error code: -600",
        ["master_unreachable", "transport"],
        False,
        ["INVALID_PARAMS"],
    ),
    (
        "Failed to setup Mooncake store, error code: -1",
        ["client_unreachable", "ipc_or_remote_map", "transport"],
        False,
        ["INTERNAL_ERROR"],
    ),
    (
        "Failed to setup Mooncake store, error code: -102",
        ["master_unreachable", "transport"],
        False,
        ["SEGMENT_ALREADY_EXISTS"],
    ),
    (
        "RuntimeError: [TP0] Warmup put failed after 10 attempts, Transfer Engine might not be "
        "ready",
        ["warmup_failed", "master_unreachable", "client_unreachable"],
        False,
        [],
    ),
    (
        "Configuration loading failed: Either the environment variable 'MOONCAKE_MASTER' or "
        "'MOONCAKE_CLIENT' is not set.",
        ["bad_config"],
        True,
        [],
    ),
    (
        "Configuration loading failed: Launch mooncake store server timeout",
        ["master_unreachable"],
        True,
        [],
    ),
    ("RuntimeError: Failed to map shared memory: Cannot allocate memory", ["mmap"], True, []),
    ("OSError: [Errno 12] Cannot allocate memory", ["mmap"], True, []),
    ("MemoryError", ["mmap"], True, []),
    (
        "RuntimeError: Failed to set shared memory size: File too large",
        ["allocator_error"],
        True,
        [],
    ),
    (
        "RuntimeError: Failed to create anonymous shared memory: Too many open files",
        ["allocator_error"],
        True,
        [],
    ),
    (
        "W1201 09:56:16.863852 11105 topology.cpp:201] No RDMA devices found, check your device "
        "installation",
        ["transport"],
        False,
        [],
    ),
    ("NotSupportedTransport", ["transport"], True, []),
    (
        "Hugepage mmap via libc failed ([Errno 12] Cannot allocate memory); falling back to plain "
        "mmap. SGLANG_HUGEPAGE_SIZE=2MB will be ignored.",
        [],
        False,
        [],
    ),
    (
        "Memory cgroup out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB",
        ["oom_suspected"],
        True,
        [],
    ),
    (
        "Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 "
        "(SIGKILL), a common cause is the OS OOM killer.",
        ["oom_suspected", "crashed_in_call"],
        False,
        [],
    ),
    ("Fatal Python error: Segmentation fault", ["crashed_in_call"], True, []),
]


@pytest.mark.parametrize(("line", "told", "certain", "codes"), KNOWN, ids=lambda v: str(v)[:40])
def test_a_known_line(line: str, told: list[str], certain: bool, codes: list[str]) -> None:
    rows = found(f"something before\n{line}\nsomething after")
    assert len(rows) == 1, [row["says"] for row in rows]
    assert rows[0]["line"] == 2
    assert causes(rows[0]) == told
    assert rows[0]["certain"] == certain
    assert [code["name"] for code in rows[0]["codes"]] == codes


def test_a_dash_reads_standard_input_too() -> None:
    assert run("-", log=RAISED).exit_code == 0


def test_bytes_that_are_no_text() -> None:
    done = run("--json", log=b"\xff\xfe\x00 " + NOT_MINE.encode() + b" \xc3")
    assert causes(json.loads(done.stdout)["found"][0]) == ["foreign_buffer"]


def test_a_terminal_without_a_word_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(Exception, match="name a code, a cause or an alert"):
        explain.main([], standalone_mode=False)


class Endless(io.StringIO):
    """A log that is made while it is read: *pieces* of it, none with more than a known line."""

    def __init__(self, pieces: int, piece: str) -> None:
        super().__init__()
        self.left, self.piece, self.longest = pieces, piece, 0

    def readline(self, size: int = -1, /) -> str:
        assert 0 < size <= 1 << 20, "an unbounded read"
        self.left -= 1
        return self.piece if self.left >= 0 else ""

    def read(self, size: int = -1, /) -> str:
        raise AssertionError("the whole log was read into memory")

    readlines = read  # type: ignore[assignment]


def test_a_log_is_read_line_by_line_and_kept_once() -> None:
    told = search(Endless(3000, REFUSED + "\n"))
    assert [(one.number, one.count) for one in told] == [(1, 3000)]


def test_pieces_of_a_line_without_an_end_are_one_line() -> None:
    told = search(Endless(3, " " * 1000))
    assert told == []
    log = io.StringIO("x" * (3 * LONGEST) + "\n" + NOT_MINE)
    assert [one.number for one in search(log)] == [2]


def test_numbers_go_on_over_blocks() -> None:
    log = io.StringIO("fine\n" * (2 * BLOCK) + NOT_MINE + "\nfine\n" + HIT)
    assert [one.number for one in search(log)] == [2 * BLOCK + 1, 2 * BLOCK + 3]


def test_help_has_an_example() -> None:
    assert "Example: hicache-obs explain -1" in run("--help").stdout
