"""The store: append, tail, recover.

Enters: events, spans and samples of one rank, from a process that may be killed at any moment. Leaves: files
that are whole up to that moment, and readers that take whatever a crash, a full disk or a bad sector left.

    Journal(rank_folder)      the writer of a rank            ProcessLog(run_folder)   of process.jsonl
    read_events, read_table   everything, with recovery       Tail(run_folder)         what is new
    write_meta, read_meta     who and when                    Slate(rank_folder)       losses of brisk steps
"""

from brickprof.journal.damage import Damage
from brickprof.journal.frames import read_table, schema
from brickprof.journal.layout import (
    EVENTS,
    META,
    PROCESS,
    PROCESS_RANK,
    SAMPLES,
    SLATE,
    SPANS,
    rank_folder,
    rank_folders,
)
from brickprof.journal.lines import decode_fields, encode_fields, read_events
from brickprof.journal.meta import read_meta, write_meta
from brickprof.journal.process import ProcessLog
from brickprof.journal.sheets import Sheet
from brickprof.journal.slate import Slate, read_slate
from brickprof.journal.tail import TableTail, Tail
from brickprof.journal.writer import Journal

__all__ = [
    "EVENTS",
    "META",
    "PROCESS",
    "PROCESS_RANK",
    "SAMPLES",
    "SLATE",
    "SPANS",
    "Damage",
    "Journal",
    "ProcessLog",
    "Sheet",
    "Slate",
    "TableTail",
    "Tail",
    "decode_fields",
    "encode_fields",
    "rank_folder",
    "rank_folders",
    "read_events",
    "read_meta",
    "read_slate",
    "read_table",
    "schema",
    "write_meta",
]
