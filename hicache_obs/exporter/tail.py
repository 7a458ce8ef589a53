"""New lines of one journal, by new bytes."""

from __future__ import annotations

import os
from pathlib import Path

from hicache_obs import runs
from hicache_obs.wire import MAX_LINE_BYTES, JournalLineError, Record, from_line

CHUNK_BYTES = 1 << 20


class JournalTail:
    """Reads what was added to a journal since the last look.

    A last line without its newline waits for its rest. A file that shrank or was replaced is
    read again from its start; who folds the records leaves out those it has seen, by their
    numbers.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        """*chunk_bytes*: most that is read at once, so that no journal fills the memory."""
        self.path = path
        self.offset = 0
        """Where the next read begins, in bytes."""
        self._chunk_bytes = chunk_bytes
        self._inode = -1
        self._rest = b""
        self._skipping = False

    def read(self) -> tuple[list[Record | JournalLineError], bool]:
        """The next records (a broken line is its error), and whether there is more to read.

        Raises:
            OSError: the file is gone, may not be read, or is no regular file.
        """
        fd = runs.open_file(self.path)
        try:
            status = os.fstat(fd)
            if status.st_ino != self._inode or status.st_size < self.offset:
                self._inode, self.offset = status.st_ino, 0
                self._rest, self._skipping = b"", False
            data = os.pread(fd, self._chunk_bytes, self.offset)
        finally:
            os.close(fd)
        self.offset += len(data)
        return self._lines(data), self.offset < status.st_size

    def has_news(self, status: os.stat_result) -> bool:
        """Whether a file of this *status* holds bytes that were not read yet."""
        return status.st_ino != self._inode or status.st_size != self.offset

    def _lines(self, data: bytes) -> list[Record | JournalLineError]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._skipping:
            self._skipping = False
            del lines[0]
        found = [_record(line) for line in lines if line]
        if len(self._rest) > MAX_LINE_BYTES:
            if not self._skipping:
                found.append(JournalLineError(f"a line of more than {MAX_LINE_BYTES} bytes"))
            self._rest, self._skipping = b"", True
        return found


def _record(line: bytes) -> Record | JournalLineError:
    try:
        return from_line(line)
    except JournalLineError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever the bytes are, the others go on
        return JournalLineError(f"{type(error).__name__}: {error}")
