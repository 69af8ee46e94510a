"""The bytes of a log: chunks, numbers of lines, packing, pipes, parts."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import threading
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.errors import UnreadableInput
from brickprof.logs.reading import source as sources
from brickprof.logs.reading.source import Part, Source

TEXT = b"".join(b"step %d loss %.3f\n" % (step, 3 - step / 1000) for step in range(2000))


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


PACKERS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": None}


def packed(how: str, data: bytes) -> bytes:
    if how == "zstd":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    return PACKERS[how](data)


@pytest.mark.parametrize("how", PACKERS)
def test_every_packing_gives_the_same_bytes(how, tmp_path):
    file = tmp_path / "train.log"
    file.write_bytes(packed(how, TEXT))
    source = Source(file)
    assert source.head().start == TEXT[: sources.HEAD]
    assert b"".join(source.chunks()) == TEXT
    assert source.line_ends == 2000
    assert source.damage == []


@pytest.mark.parametrize("how", [how for how in PACKERS if how != "plain"])
def test_a_packed_file_that_is_cut_gives_what_is_whole_and_says_so(how, tmp_path):
    file = tmp_path / "train.log"
    whole = packed(how, os.urandom(200_000).hex().encode().replace(b"a", b"\n"))
    file.write_bytes(whole[: len(whole) * 2 // 3])
    source = Source(file)
    read = b"".join(source.chunks())
    assert source.damage and "cut off or damaged" in source.damage[0]
    assert how == "bzip2" or len(read) > 10_000


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_SUSPECT", 1 << 20)
    file = tmp_path / "bomb.log.gz"
    file.write_bytes(gzip.compress(b"\0" * (16 << 20)))
    with pytest.raises(UnreadableInput, match="unpacks into more than"):
        list(Source(file).chunks())


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 64))
def test_chunks_are_whole_lines_and_all_of_them(tmp_path_factory, lines, size):
    file = tmp_path_factory.mktemp("source") / "x.log"
    lines = [b"a", *lines]  # what begins like a packed file is one
    file.write_bytes(b"\n".join(lines))
    chunks = list(Source(file).chunks(size))
    assert b"".join(chunks) == b"\n".join(lines)
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])


@given(
    st.lists(st.sampled_from([b"step 1 loss 2", b"step 2 loss 3", b"  File x", b"", b"a"]), max_size=60),
    st.integers(2, 9),
)
def test_parts_hold_every_byte_once(tmp_path_factory, lines, count):
    file = tmp_path_factory.mktemp("source") / "x.log"
    whole = b"".join(line + b"\n" for line in lines)
    file.write_bytes(whole)
    parts = Source(file).parts(count)
    assert not parts or (parts[0].start == 0 and parts[-1].end == len(whole))
    assert b"".join(b"".join(Source(file, part).chunks()) for part in parts) == (whole if parts else b"")
    assert all(whole[part.start - 1 : part.start] == b"\n" for part in parts[1:])


def test_a_file_is_not_cut_inside_a_stack_of_calls(tmp_path):
    file = tmp_path / "x.log"
    stack = (
        b"Traceback (most recent call last):\n" + b'  File "a.py", line 3, in f\n    g()\n' * 20 + b"ValueError: x\n"
    )
    file.write_bytes(TEXT[:10_000] + stack + TEXT[:10_000])
    for count in range(2, 40):
        for part in Source(file).parts(count)[1:]:
            start = file.read_bytes()[part.start :][:20]
            assert start.startswith(b"step") and not file.read_bytes()[: part.start].endswith(b"ValueError: x\n")


def test_of_a_line_without_end_only_the_beginning_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    file = tmp_path / "x.log"
    file.write_bytes(b"a\n" + b"x" * 50_000 + b"\nb\n")
    lines = list(Source(file).chunks(256))
    text = b"".join(lines)
    assert text == b"a\n" + b"x" * 1000 + b"\nb\n"


def test_lines_are_numbered_and_a_progress_bar_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 64)
    file = tmp_path / "x.log"
    file.write_bytes(b"one\n" + b"bar\r" * 100 + b"\ntwo\n")
    numbered = list(Source(file).lines())
    assert numbered[0] == (1, b"one") and numbered[-1] == (3, b"two")
    assert {number for number, _ in numbered[1:-1]} == {2}


@pytest.mark.parametrize(
    ("path", "said"),
    [("/nowhere/x.log", "there is no file"), ("/dev/null", "device"), ("/", "is a folder"), ("a\0b", "no name")],
)
def test_what_is_no_file_is_one_sentence(path, said):
    with pytest.raises(UnreadableInput, match=said):
        list(Source(path).chunks())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    file = tmp_path / "x.log"
    file.write_bytes(TEXT)
    file.chmod(0)
    with pytest.raises(UnreadableInput, match="Permission denied"):
        Source(file).head()


def test_a_named_pipe_is_read_once_and_never_waited_for_without_a_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_WRITER", 0.3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    began = time.monotonic()
    with pytest.raises(UnreadableInput, match="nobody writes"):
        Source(pipe).head()
    assert time.monotonic() - began < 5
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(TEXT)))
    writer.start()
    monkeypatch.setattr(sources, "_WRITER", 5.0)
    source = Source(pipe)
    source.head()
    assert b"".join(source.chunks()) == TEXT
    writer.join()


def test_a_part_begins_where_it_is_told(tmp_path):
    file = tmp_path / "x.log"
    file.write_bytes(TEXT)
    assert b"".join(Source(file, Part(0, 14)).chunks()) == TEXT[:14]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_text_of_two_bytes_a_letter_is_given_as_utf_8(tmp_path, encoding):
    text = TEXT.decode() * 40 + "Verlust größer als 1\n"
    (tmp_path / "wide.log").write_bytes(("\ufeff" + text).encode(encoding))
    source = Source(tmp_path / "wide.log")
    assert source.packed == encoding and source.pieces() == []
    assert source.head().start.startswith(b"step 0 loss")
    assert b"".join(source.chunks()) == text.encode()
    assert source.line_ends == text.count("\n")


def test_other_bytes_that_begin_like_a_mark_are_left_alone(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"\xff\xfeabcdef" * 100)
    assert Source(tmp_path / "odd.bin").packed == ""
