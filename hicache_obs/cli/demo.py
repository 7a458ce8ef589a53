"""``hicache-obs demo``: the bug, seen in the metrics; then the fix. On the real thing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from hicache_obs.cli.pager import StepFailedError, bench, paged, require

RELEASE = "0.5.14"
_START_S = 150
_LOOK_S = 10
_SERVER_PORT = 31_999
_STAGE = "registration"
_SHOWN = (
    "hicache_registrations_total",
    "hicache_failure_active",
    "hicache_allocator_mismatch",
    "hicache_host_pool_bytes",
    "hicache_registered_bytes",
    "hicache_draft_builder_info",
    "hicache_worker_starts_total",
)


@click.command()
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the unpacked SGLang (default: $HICACHE_OBS_CACHE, else .cache of a checkout).",
)
@click.option("--keep", is_flag=True, help="Keep logs and journals, and say where they are.")
def demo(cache: Path | None, keep: bool) -> None:
    """Show the failure and the fix on the real SGLang 0.5.14 and the real Mooncake, without a GPU.

    A standalone Mooncake client, then the same server twice: without the fixed draft host pool
    builder it dies as SGLang does, and the exporter says why; with it both pools are registered.
    Where Prometheus and Alertmanager are installed, the page arrives at a webhook, and resolves.
    Ends with 0 only if each step was seen to do what it says.

    Example: hicache-obs demo --keep
    """
    if cache is not None:
        os.environ["HICACHE_OBS_CACHE"] = str(cache)
    folder = Path(tempfile.mkdtemp(prefix="hicache-obs-demo-"))
    show = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    try:
        harness = bench("harness")
        with harness.Mooncake(folder / "mooncake") as mooncake:
            _run(harness, mooncake, folder, show)
    except (StepFailedError, RuntimeError, OSError) as error:
        show.print(f"[red]demo failed:[/] {error}", markup=True)
        show.print(f"Logs are in {folder}")
        sys.exit(1)
    finally:
        if not keep and sys.exc_info()[0] is None:
            shutil.rmtree(folder, ignore_errors=True)
    if keep:
        show.print(f"Logs and journals are in {folder}")
    show.print(f"[green]All steps did what they say[/] ({time.monotonic() - started:.0f} s).")


def _run(harness: Any, mooncake: Any, folder: Path, show: Console) -> None:
    env = {"HICACHE_OBS_STATE_DIR": str(folder / "state")}
    start = partial(_server, harness, mooncake)
    show.print(
        f"[bold]1.[/] A real mooncake_master and a standalone mooncake_client stand "
        f"({mooncake.client_address})."
    )
    programs = bench("monitoring")
    with (
        programs.Exporter(folder, folder / "state") as exporter,
        paged(programs, exporter, folder) as pager,
    ):
        show.print(f"   hicache-obs exporter follows the journals: {exporter.url}/")
        show.print("   " + pager.told, markup=False)
        show.print(
            f"[bold]2.[/] SGLang {RELEASE} starts with an EAGLE draft, "
            "HICACHE_OBS_DRAFT_FIX=off ..."
        )
        with start(folder / "unfixed", {**env, "HICACHE_OBS_DRAFT_FIX": "off"}) as server:
            code = server.wait(_START_S)
        require(
            code < 0 and not server.ready, f"the unfixed server ended with {code}, not by death"
        )
        show.print(
            f"   The worker raised, SGLang killed its process tree (signal {-code}); its /metrics "
            "was never up. Its own log ends with:"
        )
        show.print("   [dim]" + _last_error(server.log) + "[/]")
        page = _scrape_until(exporter, _is_dead)
        show.print(f"   What the exporter serves of it, {exporter.url}/metrics:")
        _print_series(show, page)
        failed = {"role": "draft", "allocator": "default", "code": "-1", "cause": "foreign_buffer"}
        _require_value(page, "hicache_registrations_total", 1, outcome="failure", **failed)
        _require_value(page, "hicache_failure_active", 1, stage=_STAGE, **failed)
        _require_value(page, "hicache_allocator_mismatch", 1, role="draft", harmful="true")
        _require_value(page, "hicache_worker_starts_total", 1, outcome="failure", stage=_STAGE)
        pager.require_page(show)

        show.print(
            "[bold]3.[/] The same start with the fixed draft host pool builder (the default) ..."
        )
        with start(folder / "fixed", env) as server:
            server.wait_ready(_START_S)
            own = server.scrape()
            page = _scrape_until(exporter, _is_up)
            show.print("   READY.")
            pager.require_resolved(show)
            code = server.terminate()
        show.print("   What the exporter serves now:")
        _print_series(show, page)
        for name, text in (("SGLang's own /metrics", own), ("the exporter", page)):
            _require_fixed(name, text)
        require(code == 0, f"the fixed server ended with {code} after SIGTERM")
        show.print("   Both pools are registered; the failure and the mismatch are gone.")


def _require_fixed(name: str, page: str) -> None:
    for gone in ("hicache_failure_active", "hicache_allocator_mismatch"):
        require(_active(page, gone) == [], f"{gone} is still active in {name}")
    for role in ("target", "draft"):
        _require_value(page, "hicache_pool_registered", 1, role=role)
    _require_value(page, "hicache_draft_builder_info", 1, state="applied")


def _server(harness: Any, mooncake: Any, folder: Path, env: dict[str, str]) -> Any:
    multiproc = folder / "multiproc"
    multiproc.mkdir(parents=True)
    env = {**env, "PROMETHEUS_MULTIPROC_DIR": str(multiproc)}
    return harness.start_server(
        RELEASE, mooncake, env, folder=folder, draft="mha", server_port=_SERVER_PORT
    )


def _is_dead(page: str) -> bool:
    ups = [sample.value for sample in _samples(page, "hicache_worker_up")]
    return ups == [0]


def _is_up(page: str) -> bool:
    """Whether the newest start got past HiCache start-up."""
    return any(_samples(page, "hicache_worker_starts_total", outcome="success"))


def _scrape_until(exporter: Any, there: Callable[[str], bool]) -> str:
    """The page as soon as it shows what is waited for; the newest one if that takes too long."""
    deadline = time.monotonic() + _LOOK_S
    page = ""
    while time.monotonic() < deadline and not there(page):
        time.sleep(0.1)
        page = exporter.metrics()
    return page


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if "error code" in line or "hicache-obs" in line]
    return "\n   ".join(line.strip()[:160] for line in lines[-4:])


def _samples(page: str, name: str, **labels: str) -> Iterator[Any]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample


def _active(page: str, name: str) -> list[Any]:
    return [sample for sample in _samples(page, name) if sample.value != 0]


def _require_value(page: str, name: str, value: float, **labels: str) -> None:
    found = [sample.value for sample in _samples(page, name, **labels)]
    require(found == [value], f"{name}{labels} is {found}, not {value}")


def _print_series(show: Console, page: str) -> None:
    """The series to look at, without the labels that are the same on all of them."""
    hidden = {"model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "server_port", "host"}
    for name in _SHOWN:
        for sample in _active(page, name):
            labels = ",".join(
                f'{k}="{v}"' for k, v in sample.labels.items() if k not in hidden and v
            )
            show.print(f"   {name}{{{labels}}} {sample.value:.0f}", style="cyan", markup=False)
