"""Every cause that the code can tell has words; codes and log lines name causes that exist."""

from __future__ import annotations

import ast
import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hicache_obs
from hicache_obs import causes, classify, codes, log_lines
from hicache_obs.causes import CAUSES
from hicache_obs.codes import CODES, SPACES, meanings
from hicache_obs.exporter import verdict
from hicache_obs.known_line import MAY_BE, TELLS
from hicache_obs.ledger import Provenance, Segment
from hicache_obs.log_lines import LINES

PACKAGE = Path(hicache_obs.__file__).parent
NOT_CAUSES = {"code_in", "allocation_stage", "allocator_label", "fallback_reason"}
"""Functions of classify.py that answer with something else; a new one is taken for a cause's."""


def words(node: ast.AST | None) -> Iterator[str]:
    """The words that an expression may be: literals, and both sides of an ``if``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from words(node.body)
        yield from words(node.orelse)


def of_classify() -> Iterator[str]:
    for function in ast.walk(ast.parse(inspect.getsource(classify))):
        if isinstance(function, ast.FunctionDef) and function.name not in NOT_CAUSES:
            for node in ast.walk(function):
                if isinstance(node, ast.Return):
                    yield from words(node.value)


def of_hooks(source: str) -> Iterator[str]:
    """Words given to a name, a field or an argument called ``cause`` or ``reason``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in ("cause", "reason"):
            yield from words(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for name, value in pairs:
                    if isinstance(name, ast.Name) and name.id in ("cause", "reason"):
                        yield from words(value)


def of_verdict() -> set[str]:
    """The words that ``verdict`` compares or hands out: its upper-case names."""
    return {v for k, v in vars(verdict).items() if k.isupper() and isinstance(v, str)}


def emitted() -> set[str]:
    hooks = [*(PACKAGE / "hooks").glob("*.py"), PACKAGE / "recorder.py"]
    found = {word for path in hooks for word in of_hooks(path.read_text())}
    return {*found, *of_classify(), *of_verdict(), "exception"}  # recorder.blamed's default


def test_the_collection_sees_what_the_code_emits() -> None:
    known = {"foreign_buffer", "segment_size_mismatch", "warmup_failed", "budget", "pin", "mmap"}
    assert known <= set(of_classify())
    assert set(of_hooks("x, cause = 1, 'new_a'\nf(reason='new_b' if y else 'new_c')")) == {
        "new_a",
        "new_b",
        "new_c",
    }
    assert of_verdict() == {"crashed_in_call", "oom_suspected", "peer"}


def test_every_cause_has_words() -> None:
    assert emitted() - set(CAUSES) == set()


def test_no_words_for_a_cause_that_nothing_tells() -> None:
    assert set(CAUSES) - emitted() == set()


def test_words_are_short_and_plain() -> None:
    for cause in CAUSES.values():
        for text in (cause.meaning, cause.action):
            assert 10 < len(text) <= 200, cause.name
            assert "|" not in text, f"{cause.name}: breaks the README's table"
            assert not text.endswith("."), f"{cause.name}: the status page adds the full stop"


def test_an_unknown_cause_is_answered_plainly() -> None:
    assert causes.explain("from_the_future").name == "from_the_future"
    assert causes.explain("budget") is CAUSES["budget"]


def test_codes_name_causes_and_spaces_that_exist() -> None:
    for code in CODES:
        assert code.space in SPACES
        assert set(code.causes) <= set(CAUSES), code
        assert code.name
        assert code.meaning
        assert code.action


def test_a_code_is_told_once_in_a_space() -> None:
    keys = [(code.space, code.value) for code in CODES]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("space", "value", "name"),
    [
        ("store", -1, "INTERNAL_ERROR"),
        ("store", -600, "INVALID_PARAMS"),
        ("store", -900, "RPC_FAIL"),
        ("store", -1003, "ETCD_CTX_CANCELLED"),
        ("te", -7, "ADDRESS_OVERLAPPED"),
        ("te", -202, "CONTEXT"),
        ("cuda", 712, "cudaErrorHostMemoryAlreadyRegistered"),
        ("cuda", 804, "cudaErrorCompatNotSupportedOnDevice"),
        ("errno", 12, "ENOMEM"),
        ("acl", 207001, "-"),
    ],
)
def test_names_are_those_of_the_headers(space: str, value: int, name: str) -> None:
    assert [code.name for code in meanings(value, space)] == [name]


def test_a_number_is_told_in_every_space_that_knows_it() -> None:
    assert [code.space for code in meanings(-1)] == ["store", "te"]
    assert [code.space for code in meanings(-101)] == ["store", "te"]
    assert meanings(-4242) == []


@pytest.mark.parametrize(("mode", "value"), [(classify.STANDALONE, -1), (classify.EMBEDDED, -600)])
def test_a_refusal_may_be_exactly_what_classify_makes_of_it(mode: str, value: int) -> None:
    segment = Segment(4096, 8192, "mooncake", "target", "kv")
    buffers = [
        Provenance("exact", segment),
        Provenance("part", segment),
        Provenance("foreign", None),
        Provenance("null", None),
    ]
    told = {
        classify.registration_cause(
            mode=mode,
            code=str(value),
            error_type="RuntimeError",
            message="",
            provenance=buffer,
            overlaps=overlaps,
            size=size,
            health=health,
            reachable=reachable,
        )
        for buffer, overlaps, size, health, reachable in itertools.product(
            buffers, (False, True), (0, 8192), (None, 0, 1, 2), (None, True, False)
        )
    }
    assert told == set(meanings(value, "store")[0].causes)


def test_lines_name_causes_and_spaces_that_exist() -> None:
    for line in LINES:
        groups = line.pattern.groupindex
        assert set(line.causes) <= set(CAUSES), line.pattern.pattern
        assert line.certainty in (TELLS, MAY_BE)
        assert line.says
        assert line.source
        assert ("code" in groups) == bool(line.space), line.pattern.pattern
        assert line.space in ("", *SPACES)


@pytest.mark.parametrize("module", [codes, causes, log_lines], ids=lambda m: m.__name__)
def test_facts_need_no_library(module: ModuleType) -> None:
    heavy = "{'sglang', 'torch', 'prometheus_client', 'opentelemetry', 'click', 'rich'}"
    check = f"import sys, {module.__name__}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
