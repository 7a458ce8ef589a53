"""The cause of a failure, and what SGLang's and Mooncake's texts say."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_obs import classify
from hicache_obs.classify import EMBEDDED, STANDALONE
from hicache_obs.ledger import Provenance, Segment

MOONCAKE = Segment(4096, 8192, "mooncake", "target", "kv")
DEFAULT = Segment(4096, 8192, "default", "draft", "draft")
EXACT = Provenance("exact", MOONCAKE)
PART = Provenance("part", MOONCAKE)
FOREIGN = Provenance("foreign", None)
NULL = Provenance("null", None)
REFUSED = "Failed to register buffer to Mooncake Store, error code: {}"


def registration(mode: str, provenance: Provenance | None, **more: Any) -> str:
    code = "-1" if mode == STANDALONE else "-600"
    facts: dict[str, Any] = {
        "code": code,
        "error_type": "RuntimeError",
        "message": REFUSED.format(code),
        "size": 8192,
    }
    return classify.registration_cause(mode=mode, provenance=provenance, **facts | more)


# Registration with a standalone client


def test_foreign_buffer_is_of_no_segment_or_not_mooncakes() -> None:
    assert registration(STANDALONE, FOREIGN) == "foreign_buffer"
    assert registration(STANDALONE, Provenance("exact", DEFAULT)) == "foreign_buffer"
    assert registration(STANDALONE, Provenance("part", DEFAULT)) == "foreign_buffer"


def test_foreign_buffer_outranks_an_unreachable_client() -> None:
    assert registration(STANDALONE, FOREIGN, health=classify.UNREACHABLE) == "foreign_buffer"


def test_segment_size_mismatch_is_a_part_of_mooncakes_segment() -> None:
    assert registration(STANDALONE, PART) == "segment_size_mismatch"
    assert registration(STANDALONE, PART, health=classify.UNREACHABLE) == "segment_size_mismatch"


def test_client_unreachable_by_its_health() -> None:
    assert registration(STANDALONE, EXACT, health=classify.UNREACHABLE) == "client_unreachable"


def test_standalone_not_initialized_by_its_health() -> None:
    assert registration(STANDALONE, EXACT, health=classify.NOT_INITIALISED) == "not_initialized"


@pytest.mark.parametrize("health", [None, classify.HEALTHY])
def test_client_unreachable_by_a_connection(health: int | None) -> None:
    cause = registration(STANDALONE, EXACT, health=health, reachable=False)
    assert cause == "client_unreachable"


@pytest.mark.parametrize("reachable", [None, True])
@pytest.mark.parametrize("health", [None, classify.HEALTHY])
def test_ipc_or_remote_map_is_what_is_left(health: int | None, reachable: bool | None) -> None:
    cause = registration(STANDALONE, EXACT, health=health, reachable=reachable)
    assert cause == "ipc_or_remote_map"


@pytest.mark.parametrize("mode", [STANDALONE, EMBEDDED])
def test_null_pointer(mode: str) -> None:
    assert registration(mode, NULL) == "null_pointer"


# Registration with an embedded store


def test_empty_buffer() -> None:
    assert registration(EMBEDDED, EXACT, size=0) == "empty_buffer"


def test_overlap_with_a_registered_buffer() -> None:
    assert registration(EMBEDDED, EXACT, overlaps=True) == "overlap"


def test_embedded_not_initialized_by_its_health() -> None:
    assert registration(EMBEDDED, EXACT, health=classify.NOT_INITIALISED) == "not_initialized"


def test_master_unreachable_by_a_connection() -> None:
    assert registration(EMBEDDED, EXACT, reachable=False) == "master_unreachable"
    assert registration(EMBEDDED, EXACT, reachable=False, overlaps=True) == "overlap"


@pytest.mark.parametrize("provenance", [EXACT, PART, FOREIGN, Provenance("exact", DEFAULT)])
def test_transport_is_what_is_left(provenance: Provenance) -> None:
    assert registration(EMBEDDED, provenance, health=classify.HEALTHY) == "transport"


# Registration without a native code


def test_not_initialized_by_its_text() -> None:
    message = "Mooncake store is not initialized."
    assert registration(STANDALONE, EXACT, code="", message=message) == "not_initialized"


@pytest.mark.parametrize("error_type", ["AttributeError", "TypeError"])
def test_unsupported_buffer_shape_by_its_type(error_type: str) -> None:
    cause = registration(STANDALONE, EXACT, code="", error_type=error_type, message="x")
    assert cause == "unsupported_buffer_shape"


def test_unsupported_buffer_shape_without_an_address() -> None:
    assert registration(EMBEDDED, None, code="", message="x") == "unsupported_buffer_shape"


def test_exception_is_any_other() -> None:
    assert registration(EMBEDDED, EXACT, code="", message="odd") == "exception"


def test_unknown_is_a_code_without_an_address() -> None:
    assert registration(STANDALONE, None) == "unknown"


# Set-up


def setup(
    mode: str,
    error_type: str,
    message: str,
    reachable: bool | None = None,
    *,
    logical: bool = False,
) -> str:
    return classify.setup_cause(
        mode=mode,
        code=classify.code_in(message),
        error_type=error_type,
        message=message,
        reachable=reachable,
        logical=logical,
    )


SETUP_FAILED = "Failed to setup Mooncake store, error code: {}"
WARMUP = "[TP0] Warmup put failed after 10 attempts, Transfer Engine might not be ready"


def test_allocator_required() -> None:
    message = (
        "MooncakeStore with standalone_storage=True requires MooncakeHostTensorAllocator. "
        "Please set standalone_storage=False or upgrade Mooncake by "
        "'pip install mooncake --upgrade'."
    )
    assert setup(STANDALONE, "RuntimeError", message) == "allocator_required"
    assert setup(STANDALONE, "RuntimeError", message, logical=True) == "logical_anchor"


def test_mooncake_missing() -> None:
    message = (
        "Please install mooncake by following the instructions at https://kvcache-ai.github.io"
    )
    assert setup(EMBEDDED, "ImportError", message) == "mooncake_missing"


@pytest.mark.parametrize(
    ("mode", "cause"), [(STANDALONE, "client_unreachable"), (EMBEDDED, "master_unreachable")]
)
@pytest.mark.parametrize(
    ("error_type", "message"),
    [
        ("RuntimeError", SETUP_FAILED.format(-1)),
        ("RuntimeError", WARMUP),
        ("AssertionError", ""),
    ],
)
def test_unreachable(mode: str, cause: str, error_type: str, message: str) -> None:
    assert setup(mode, error_type, message, reachable=False) == cause


@pytest.mark.parametrize("reachable", [True, None])
def test_a_code_of_a_reachable_store(reachable: bool | None) -> None:
    message = SETUP_FAILED.format(-1)
    assert setup(STANDALONE, "RuntimeError", message, reachable) == "ipc_or_remote_map"
    message = SETUP_FAILED.format(-600)
    assert setup(EMBEDDED, "RuntimeError", message, reachable) == "transport"


@pytest.mark.parametrize("reachable", [True, None])
@pytest.mark.parametrize(
    ("error_type", "message"), [("RuntimeError", WARMUP), ("AssertionError", "")]
)
def test_warmup_failed(error_type: str, message: str, reachable: bool | None) -> None:
    assert setup(EMBEDDED, error_type, message, reachable) == "warmup_failed"


@pytest.mark.parametrize(
    ("error_type", "message"),
    [
        ("ValueError", "Invalid global_segment_size: missing number before 'gb'"),
        ("ValueError", "The environment variable 'MOONCAKE_MASTER' is not set."),
        ("JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        (
            "RuntimeError",
            "Config file path not set. Please set SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
        ),
        ("RuntimeError", "Failed to load config from /etc/mooncake.json: Expecting value"),
    ],
)
def test_bad_config(error_type: str, message: str) -> None:
    assert setup(EMBEDDED, error_type, message) == "bad_config"


def test_a_master_that_never_came_up_is_no_bad_config() -> None:
    message = "Launch mooncake store server timeout"
    assert setup(EMBEDDED, "ValueError", message, reachable=False) == "master_unreachable"


def test_any_other_set_up_failure() -> None:
    assert setup(EMBEDDED, "KeyError", "'x'") == "exception"


# Texts


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (REFUSED.format(-1), "-1"),
        (REFUSED.format(-600), "-600"),
        (SETUP_FAILED.format(-1010), "-1010"),
        ("cudaHostRegister failed (rc=1, invalid argument) at offset=0 size=34760392704", "1"),
        ("cudaHostRegister failed (rc=712, already registered) for ptr=0x7f size=4096;", "712"),
        ("register failed, ret=-3", "-3"),
        ("Mooncake store is not initialized.", ""),
        ("Failed to register buffer to Mooncake Store, error code: None", ""),
        ("src=5 dst=6", ""),
        ("", ""),
    ],
)
def test_code_in_a_text(message: str, code: str) -> None:
    assert classify.code_in(message) == code


@pytest.mark.parametrize(
    ("error_type", "message", "reason"),
    [
        (
            "ValueError",
            "Not enough host memory available. Requesting 40.00 GB but only have 44.87 GB free. "
            "Please reduce the size of the hierarchical cache.",
            "budget",
        ),
        (
            "AssertionError",
            "The host memory should be larger than the device memory with the current protocol",
            "too_small",
        ),
        (
            "RuntimeError",
            "cudaHostRegister failed (rc=1, invalid argument) for ptr=0x7f134c660000 size=4096; "
            "host buffer is not pinned and device transfers may silently return stale data.",
            "pin",
        ),
        (
            "RuntimeError",
            "cudaHostRegister failed (rc=2, out of memory) at offset=0 size=34760392704 "
            "(total=69520785408, chunk_limit=34760392704); host buffer is not pinned",
            "pin",
        ),
        (
            "RuntimeError",
            "MooncakeHostMemAllocator.alloc returned a null pointer for 1.000 GB "
            "(1073741824 bytes); the mooncake host memory allocator could not map the segment",
            "null_pointer",
        ),
        ("RuntimeError", "Failed to map shared memory: Cannot allocate memory", "mmap"),
        (
            "RuntimeError",
            "Failed to create anonymous shared memory: Too many open files",
            "allocator_error",
        ),
        ("RuntimeError", "Failed to set shared memory size: File too large", "allocator_error"),
        ("OSError", "[Errno 12] Cannot allocate memory", "mmap"),
        ("MemoryError", "", "mmap"),
        ("RuntimeError", "CUDA error: invalid argument", "pin"),
        ("NotImplementedError", "layout is not supported", "exception"),
    ],
)
def test_reason_of_an_allocation_that_failed(error_type: str, message: str, reason: str) -> None:
    assert classify.allocation_reason(error_type, message) == reason


def test_torch_without_memory_is_no_mere_exception() -> None:
    message = (
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
    )
    assert classify.allocation_reason("RuntimeError", message) in ("mmap", "allocator_error")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("HostTensorAllocator", "default"),
        ("MooncakeHostTensorAllocator", "mooncake"),
        ("ShmHostTensorAllocator", "shm"),
        ("UMBPHostTensorAllocator", "mori"),
        ("TensorcastHostTensorAllocator", "tensorcast"),
        ("SomebodysAllocator", "other"),
        ("NoneType", "other"),
    ],
)
def test_allocator_label(name: str, label: str) -> None:
    assert classify.allocator_label(name) == label


@pytest.mark.parametrize(
    ("requested", "actual", "reason"),
    [
        ("mooncake", "default", "import_error"),
        ("mori", "default", "import_error"),
        ("shm", "default", "import_error"),
        ("tensorcast", "default", "import_error"),
        ("mooncake", "mooncake", ""),
        ("default", "default", ""),
        ("file", "default", ""),
        ("dynamic", "default", ""),
        ("None", "default", ""),
    ],
)
def test_a_fallback_is_from_a_type_with_an_allocator_of_its_own(
    requested: str, actual: str, reason: str
) -> None:
    assert classify.fallback_reason(requested, actual) == reason


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[127.0.0.1]:29417",
            "peer",
        ),
        ("[gloo/transport/tcp/pair.cc:534] Connection reset by peer [10.0.0.7]:30211", "peer"),
        ("Connection was likely closed. Did the remote server shutdown or crash?", "peer"),
        ("Connection reset by peer", "exception"),
        ("out of memory", "exception"),
    ],
)
def test_a_start_that_lost_its_peer(message: str, cause: str) -> None:
    assert classify.start_cause(message) == cause
