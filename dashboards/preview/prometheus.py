"""What the queries of a dashboard find in a Prometheus, as Grafana would ask it."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from queries import substituted

_POINTS = 240
"""Points of a line; Grafana asks for about as many as a panel has pixels."""
_TIMEOUT_S = 30
Series = list[dict[str, Any]]


class QueryError(RuntimeError):
    """Prometheus refused a query, or did not answer."""


@dataclass(frozen=True)
class Asked:
    """A Prometheus and what is asked of it: from *start* to *end*, in seconds since the epoch.

    *scrape_s* is its scrape interval, which Grafana knows from the data source's settings.
    """

    url: str
    start: float
    end: float
    scrape_s: float

    @property
    def step(self) -> int:
        return max(1, math.ceil((self.end - self.start) / _POINTS))

    def series(self, expression: str, *, instant: bool) -> Series:
        """The series of *expression*, a query of a dashboard.

        Raises:
            QueryError: there is no answer.
        """
        rate = max(self.step + self.scrape_s, 4 * self.scrape_s)
        query = substituted(expression, interval=f"{math.ceil(rate)}s")
        if instant:
            path, when = "query", {"time": f"{self.end:.3f}"}
        else:
            path = "query_range"
            when = {"start": f"{self.start:.3f}", "end": f"{self.end:.3f}", "step": str(self.step)}
        parameters = urllib.parse.urlencode({"query": query, **when})
        address = f"{self.url.rstrip('/')}/api/v1/{path}?{parameters}"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
                found: Series = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise QueryError(f"{query}: {error.read().decode()[:500]}") from None
        except OSError as error:
            raise QueryError(f"{self.url} does not answer: {error}") from None
        return found

    def answers(self, panel: Mapping[str, Any]) -> dict[str, Series]:
        """The series of each query of *panel*, by its letter."""
        return {
            target["refId"]: self.series(target["expr"], instant=target["instant"])
            for target in panel.get("targets", ())
            if not target.get("hide")
        }

    def annotations(self, dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The spans of time that the annotations of *dashboard* mark, with their colour."""
        for annotation in dashboard["annotations"]["list"]:
            if annotation.get("builtIn") or not annotation["enable"]:
                continue
            for row in self.series(annotation["target"]["expr"], instant=False):
                times = [time for time, value in row["values"] if float(value) > 0]
                for since, until in self._spans(times):
                    yield {"colour": annotation["iconColor"], "since": since, "until": until}

    def _spans(self, times: list[float]) -> Iterator[tuple[float, float]]:
        since = last = None
        for time in times:
            if since is None or last is None:
                since = time
            elif time - last > 1.5 * self.step:
                yield since, last
                since = time
            last = time
        if since is not None and last is not None:
            yield since, last
