"""A file that is there whole, or not at all.

Enters: where somebody wants a file. Leaves: a stream to write to, packed where the name ends in ``.gz``; the file takes
its name only when everything is in it. What is no plain file (a pipe, a device, a link) is written as it is.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A stream of bytes into ``path``; ``OSError`` when it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    target = path.with_name(f".{path.name[:100]}.{os.getpid()}") if plain else path
    try:
        with target.open("wb") as raw, _packed(raw, path) as stream:
            yield stream
        if plain:
            target.replace(path)
    except BaseException:
        if plain:
            target.unlink(missing_ok=True)
        raise


@contextmanager
def whole_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """The same for text: UTF-8, and lines that end as they are given."""
    with whole(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=False)
        yield text
        text.flush()
        text.detach()


@contextmanager
def _packed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        yield raw
        return
    # Without a time in its head, the same run gives the same bytes.
    with gzip.GzipFile(path.stem, "wb", compresslevel=6, fileobj=raw, mtime=0) as stream:
        yield cast(BinaryIO, stream)
