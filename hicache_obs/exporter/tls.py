"""HTTPS for the exporter: its certificate, renewed without a restart, and who may ask."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Files:
    """PEM files: the *certificate* (with its chain), its *key*, and the *client_ca* that must have
    signed a client's certificate (`None`: clients show none)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Tls:
    """The TLS context made of the files as they are now.

    Raises:
        OSError: a file cannot be read, or is no certificate or key (`ssl.SSLError` is one); it
            names the file.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._seen = self._state()
        self.context = _context(files)

    def renew(self) -> bool:
        """Read the files again if they changed; whether they did.

        Files of which one is replaced before the other do not fit for a moment: the context
        stays as it was, and the next call tries again.

        Raises:
            OSError: as above; the context is as it was.
        """
        now = self._state()
        if now == self._seen:
            return False
        self.context = _context(self._files)
        self._seen = now
        return True

    def _state(self) -> list[tuple[int, int, int] | None]:
        """What a replaced file changes; Kubernetes swaps a link to a folder of them."""
        states: list[tuple[int, int, int] | None] = []
        for path in _paths(self._files):
            try:
                found = os.stat(path)
                states.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError:
                states.append(None)
        return states


def _paths(files: Files) -> list[Path]:
    named = (files.certificate, files.key, files.client_ca)
    return [path for path in named if path is not None]


def _context(files: Files) -> ssl.SSLContext:
    for path in _paths(files):
        with path.open("rb"):
            pass  # ssl does not say which file it could not open
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.certificate, files.key)
    except ssl.SSLError as error:
        text = f"{files.certificate} and {files.key} are no certificate and its key: {error}"
        raise ssl.SSLError(1, text) from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            text = f"{files.client_ca} is no certificate of an authority: {error}"
            raise ssl.SSLError(1, text) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
