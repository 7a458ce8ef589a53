"""A failure kind as a file: what is done, on which releases, and what must be told.

``scenarios/<name>.toml`` holds one kind. Its keys are those of `Scenario` and `Told`; a key that
is not, or a value that cannot be, is an error that names the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib
from bench.fetch import SAMPLE
from bench.harness import RELEASES

from hicache_obs.causes import CAUSES

SCENARIOS = Path(__file__).with_name("scenarios")
WAYS = ("server", "store", "pool", "path")
STORES = (
    *("standalone", "embedded", "nowhere", "no_master", "not_a_client", "no_client"),
    *("no_segment", "none"),
)


@dataclass(frozen=True)
class Told:
    """The labels of the failure as the exporter serves them, and the alerts that fire.

    With no *cause* there is no failure, and *series* names what is told in its place: a metric,
    and labels that one of its rows of a value other than 0 has.
    """

    stage: str = ""
    mode: str = ""
    role: str = "none"
    pool: str = ""
    allocator: str = ""
    code: str = ""
    cause: str = ""
    alerts: tuple[str, ...] = ()
    series: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def failure(self) -> dict[str, str]:
        """The labels of ``hicache_failure_active``."""
        return {
            name: getattr(self, name)
            for name in ("stage", "mode", "role", "pool", "allocator", "code", "cause")
        }


@dataclass(frozen=True)
class Scenario:
    """One failure kind."""

    name: str
    kind: str
    """In one sentence, what fails."""
    releases: tuple[str, ...]
    """SGLang releases on which it is walked, and told."""
    sample: str
    """The one of them that ``make test`` walks, and has; "" if only ``make test-all`` does."""
    way: str
    """``server``: a start of the bench's server; ``store``: calls of a real MooncakeStore;
    ``pool``: a host pool is built; ``path``: a case of bench/registration_paths.py."""
    told: Told
    elsewhere: str = ""
    """Why not on the other releases; "" if it is the same there, and only not walked."""
    never: tuple[str, ...] = ()
    """The releases on which *elsewhere* holds: there it cannot happen, or cannot be seen."""
    source: str = ""
    """The public report of a failure of this kind; needed where something stands in."""
    stand_in: str = ""
    """What is not real in it, beside what never is on the bench; "" if nothing."""
    store: str = "standalone"
    """Which store: ``standalone``, ``embedded``, ``nowhere`` (nothing listens where the client
    should), ``no_master``, ``not_a_client`` (a master listens there), ``no_client`` (a client that
    the scenario kills), ``no_segment`` (a master without any memory), ``none``."""
    config: dict[str, Any] = field(default_factory=dict)
    """Laid over the store's extra config."""
    mooncake: str = ""
    """Another Mooncake release, of ``bench/fetch.py``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of ``server.py``."""
    env: dict[str, str] = field(default_factory=dict)
    before: str = ""
    """Python code that is run before SGLang's: in a server, by a second plug-in's entry point."""
    code: str = ""
    """Python code of the ways ``store`` and ``pool`` (``programs/``)."""
    case: str = ""
    """Of ``bench/registration_paths.py``."""
    fails: bool = False
    """Whether the vendors' stand-ins refuse (its ``--fails``)."""


def load(path: Path) -> Scenario:
    """Read one file; `ValueError` names it and says what is wrong."""
    try:
        read = tomllib.loads(path.read_text())
        told = Told(**_tuples(read.pop("told")))
        scenario = Scenario(name=path.stem, told=told, **_tuples(read))
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: {error}; the keys are those of {__file__}") from error
    wrong = _wrong(scenario)
    if wrong:
        raise ValueError(f"{path}: {wrong}")
    return scenario


def load_all() -> list[Scenario]:
    """Every scenario, by its file's name."""
    return [load(path) for path in sorted(SCENARIOS.glob("*.toml"))]


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _wrong(scenario: Scenario) -> str:
    told = scenario.told
    unknown = {*scenario.releases, *scenario.never} - set(RELEASES)
    checks = {
        f"no such release: {sorted(unknown)}": unknown,
        "both walked and never": {*scenario.releases} & {*scenario.never},
        f"sample {scenario.sample!r} is none of its releases that `make test` has": scenario.sample
        not in {"", *scenario.releases} & {"", *SAMPLE},
        f"way {scenario.way!r} is none of {WAYS}": scenario.way not in WAYS,
        f"store {scenario.store!r} is none of {STORES}": scenario.store not in STORES,
        f"cause {told.cause!r} is not in hicache_obs/causes.py": told.cause
        and told.cause not in CAUSES,
        "neither a cause nor a series": not told.cause and not told.series,
        "a stand-in without its public source": scenario.stand_in and not scenario.source,
        "never without elsewhere": bool(scenario.never) != bool(scenario.elsewhere),
    }
    return next((words for words, bad in checks.items() if bad), "")
