"""Our own faults: counted, logged once a place, never raised."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hicache_obs import faults


def test_counts_by_place_and_keeps_the_last_text() -> None:
    faults.count("disk", OSError(28, "No space left on device"))
    faults.count("disk", "second")
    faults.count("label", ValueError("odd"))
    assert sorted(faults.take_unreported()) == [
        ("disk", 2, "second"),
        ("label", 1, "ValueError: odd"),
    ]


def test_what_was_taken_is_reported_once() -> None:
    faults.count("disk", "one")
    faults.take_unreported()
    assert faults.take_unreported() == []
    faults.count("disk", "two")
    assert faults.take_unreported() == [("disk", 1, "two")]


def test_only_the_first_of_a_place_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        faults.count("disk", f"fault {number}")
    faults.count("label", "other")
    assert [record.getMessage() for record in caplog.records] == [
        "hicache-obs: disk: fault 0 (SGLang goes on; logged once)",
        "hicache-obs: label: other (SGLang goes on; logged once)",
    ]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_a_text_is_counted(counted: Callable[[], dict[str, int]]) -> None:
    faults.count("odd", UnprintableError())
    assert counted() == {"odd": 1}


def test_threads_lose_no_count(counted: Callable[[], dict[str, int]]) -> None:
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(500):
            faults.count("busy", "x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted() == {"busy": 2000}


def test_a_fork_while_another_thread_counts_does_not_hang(run_python: Callable[..., str]) -> None:
    script = """
import os, signal, threading
from hicache_obs import faults
locked, done = threading.Event(), threading.Event()
def count():
    with faults._lock:
        locked.set()
        done.wait()
threading.Thread(target=count).start()
locked.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(1)
    faults.count("child", "x")
    os._exit(0)
print(os.waitpid(pid, 0)[1])
done.set()
"""
    assert run_python(script).strip() == "0"


def test_a_forked_child_does_not_report_its_parents_faults(run_python: Callable[..., str]) -> None:
    script = """
import os
from hicache_obs import faults, recorder
faults.logger.disabled = True
faults.count("parent", "x")
pid = os.fork()
if pid == 0:
    print(faults.take_unreported(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(faults.take_unreported())
"""
    assert run_python(script).splitlines() == ["[]", "[('parent', 1, 'x')]"]
