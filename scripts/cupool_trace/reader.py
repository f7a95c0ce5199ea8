# SPDX-License-Identifier: Apache-2.0
"""From a file to validated events, in the order in which they happened.

Here: Reader (one file, read once) and in_time_order (undoes the small disorder between threads). Not here: which keys an event
has; see schema. Nor what an event means; see replay.

Nearly all lines of a long trace are events of segments and blocks, which the library always writes in the same form. A regular
expression takes these apart, many at a time, which is several times as fast as a parser of JSON and gives the same; everything
else goes through that parser. Parts of such a line whose texts come again and again are looked up by their texts: its kind
(event, thread and device), and the keys behind its size.
"""
from __future__ import annotations

import gzip
import io
import itertools
import json
import operator
import os
import re
import sys
import zlib
from typing import Any, BinaryIO, Iterable, Iterator, Optional

from . import ahead
from .live import MAGIC
from .omitted import Omitted
from .schema import BLOCKS, CHECKS, FORMAT, HEADER, REQUIRED, SEGMENTS, Event, optional_of

EVENT_START = b'{"t":'
MAX_LINE = 1 << 20  # a longer line is no event; keeps a file without newlines out of memory
BLOCK = 1 << 16  # bytes that are taken apart at a time
MOST_TAILS = 1 << 14  # ends of lines that are remembered, of each event
MOST_KINDS = 1 << 14
WINDOW = 1 << 13  # events over which they are sorted by time; threads overtake each other by far less. Twice as many are held back
KEEP = 100  # of problems and of moments worth listing, per file; all are counted

# By when it is sorted: its time, or that of an earlier one of its thread if that is later; its line; the event, or a Brief (see brief).
Entry = tuple[int, int, Any]

# How files begin that compress a trace in a way which is not read here.
PACKED = ((b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"PK\x03\x04", "zip"))


class CannotRead(Exception):
    """A file that is not there, not readable, or no trace at all."""


# A line of an event about a segment or block as the library writes it: its time; event, thread and device; address, size, and the
# rest of it. Or any other line, as the last group. Longer numbers might be too large; t and n are never 0 there, or worth a closer look.
_NUMBER = "(0|[1-9][0-9]{0,18})"
_HEAD = ("t", "e", "tid", "d", "p", "n")
LINE = re.compile(r'(?:{"t":([1-9][0-9]{0,18}),"e":"([a-z_]+","tid":[0-9]+,"d":[0-9]+),"p":"(0x[0-9a-fA-F]{1,16})",'
                  r'"n":([1-9][0-9]{0,18})(}|,.*)|(.*))\n')
_KIND = re.compile(rf'({"|".join(BLOCKS + SEGMENTS)})","tid":{_NUMBER},"d":{_NUMBER}')
# All lines of a kind have these in common: event, thread, device, the thread's clock; is it wanted?
Kind = tuple[str, int, int, list[int], bool]


class Problems:
    """The problems of one file: the first KEEP are kept, all are counted."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[tuple[int, str]] = []

    def add(self, line: int, text: str) -> None:
        self.count += 1
        if len(self.kept) < KEEP:
            self.kept.append((line, text))


SUFFIXES = (".jsonl", ".jsonl.gz")
# A trace without its end. These cannot be told apart: a full disk refuses the end line, too.
UNFINISHED = "killed, still running, or its disk was full"


def files_of(path: str) -> list[str]:
    """The traces in a folder; of anything else, that."""
    if not os.path.isdir(path):
        return [path]
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(SUFFIXES))


# The state of a file, which changes with each batch.
_KNOWN = ("header", "lines", "cut", "ended", "dropped", "left_out", "gaps")
# A message of the child: a batch, its problems, how many more were only counted, the state; why the file cannot be read on, which
# only the last message may have.
Told = tuple[list[Entry], list[tuple[int, str]], int, dict[str, Any], Optional[str]]


class Reader:
    """One file, read once: iterate events() for (line number, event), each with its required keys and their types right.

    Whatever else stands in the file goes to `problems` and is skipped. A cut last line is no problem: the process was killed.
    Events of the names in `unwanted` are checked and counted, and left out.
    """

    AHEAD = True  # a child may read the file; not for those that are asked for events more than once

    def __init__(self, path: str, problems: Problems, unwanted: frozenset[str] = frozenset()) -> None:
        self.path = path
        self.problems = problems
        self.left_out = 0
        self.gaps: Event = {}  # for Omitted
        self.header: Event = {}
        self.lines = 0
        self.cut = False
        self.ended = False
        self.dropped = 0
        self._after_end = False
        self._half = 0  # the number of a line that is half an event, until the next one has been seen
        self._unwanted = unwanted
        self._tails: dict[str, dict[str, Event]] = {e: {} for e in BLOCKS + SEGMENTS}
        self._kinds: dict[str, Kind] = {}  # by their text
        self._clocks: dict[Any, list[int]] = {}  # of each thread: the time of its last event, and the latest of all its events

    def _open(self) -> BinaryIO:
        raw: Any = sys.stdin.buffer if self.path == "-" else open(self.path, "rb")
        if not hasattr(raw, "peek"):
            raw = io.BufferedReader(raw)
        return raw  # type: ignore[no-any-return]

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, many at a time. A piece without a newline at its end is a part of a line: the last of the file, or far too long."""
        try:
            with self._open() as raw:
                # The content, not the name, says whether it is compressed: standard input has no name.
                start = raw.peek(6)[:6]  # type: ignore[attr-defined]
                packed = next((name for magic, name in PACKED if start.startswith(magic)), None)
                if packed:
                    raise CannotRead(f"{self.path}: compressed by {packed}; unpack it first, or compress traces by gzip")
                f: Any = gzip.GzipFile(fileobj=raw) if start[:2] == b"\x1f\x8b" else raw
                try:
                    yield from whole_lines(f)
                except EOFError:  # the compressed file itself is cut
                    self.cut = True
        except IsADirectoryError:
            raise CannotRead(f"{self.path}: no {' or '.join('*' + s for s in SUFFIXES)} in it") from None
        except (OSError, zlib.error) as e:
            # The shell leaves a pattern as it is that matches no file.
            hint = " (no file has such a name: a process that allocates nothing leaves no trace)" if (
                isinstance(e, FileNotFoundError) and "*" in str(self.path)) else ""
            raise CannotRead(f"{self.path}: {getattr(e, 'strerror', None) or e}{hint}") from e

    def _object(self, raw: bytes, whole: bool) -> Optional[Event]:
        """The JSON object of a line. None: it is none, which was noted."""
        o = None
        if len(raw) <= MAX_LINE:
            try:
                o = json.loads(raw)
            except (ValueError, RecursionError):
                if raw.startswith(b"{") and not whole and len(raw) < MAX_LINE:
                    self.cut = True
                    return None
        if isinstance(o, dict):
            return o
        if self.lines == 1:
            page = raw.startswith(MAGIC)
            raise CannotRead(f"{self.path}: " + ("a statistics page, no trace; cupool-trace export reads it" if page else "not a cupool trace"))
        self._no_object()
        if raw and raw[:5] == EVENT_START[:len(raw)]:
            self._half = self.lines
        else:
            self.problems.add(self.lines, "not a JSON object")
        return None

    def _no_object(self, gap: Optional[Event] = None) -> None:
        """Half a line is where writing failed, if the next one says that it did."""
        if self._half and not (gap and gap["why"] == "error" and self._half == self.lines - 1):
            self.problems.add(self._half, "not a JSON object")
        self._half = 0

    def _read_header(self, o: Event) -> None:
        if "merged" in o and "cupool" not in o:
            raise CannotRead(f"{self.path}: written by merge; read the traces that it was made of")
        if "cupool" not in o and "t0_unix_ns" not in o:  # JSON Lines of another program
            raise CannotRead(f"{self.path}: not a cupool trace")
        self.header = o
        if o.get("cupool") != FORMAT:
            self.problems.add(1, f"format {o.get('cupool')!r} is unknown to this program, which knows {FORMAT}")
        for key, good, what in HEADER:
            if key not in o:
                self.problems.add(1, f"header: {key} is missing")
            elif not good(o[key]):
                self.problems.add(1, f"header: {key} is {o[key]!r:.80}, not {what}")
                del o[key]  # nobody after us has to look again

    def _valid(self, ev: Event) -> bool:
        name = ev["e"]
        for key, good, what in CHECKS.get(name, ()):
            if key not in ev:
                self.problems.add(self.lines, f"{name}: {key} is missing")
                return False
            if not good(ev[key]):
                self.problems.add(self.lines, f"{name}: {key} is {ev[key]!r:.80}, not {what}")
                return False
        for key, good, what in optional_of(name):
            if key in ev and not good(ev[key]):
                self.problems.add(self.lines, f"{name}: {key} is {ev[key]!r:.80}, not {what}")
                return False
        if ev.get("n") == 0 and name in ("alloc", *SEGMENTS):
            self.problems.add(self.lines, f"{name}: n is 0")
            return False
        return True

    def _event(self, raw: bytes, whole: bool) -> Optional[Event]:
        """The event of a line, whatever that holds. None: it has none, or a wrong one, which was noted."""
        o = self._object(raw, whole)
        if o is None:
            return None
        line, add = self.lines, self.problems.add
        if "e" not in o:
            if line == 1:
                self._read_header(o)
            else:
                add(line, "a second header: two traces in one file, which are to be read each on its own" if "cupool" in o else
                    "a second header, or an event without a name")
            return None
        if line == 1:
            add(1, "the header is missing")
        if self.ended and not self._after_end:
            self._after_end = True
            add(line, "the end line is not the last one")
        if not isinstance(o["e"], str):
            add(line, "e is not a string")
            return None
        if o["e"] not in REQUIRED or not self._valid(o):  # not in it: a later version's
            return None
        if o["e"] == "gap":
            self._no_object(o)
            self.omitted.add(o)
        if o["e"] == "end":
            self.ended = True
            self.dropped = o["dropped"]
        return o

    def _tail(self, name: str, text: str) -> Optional[Event]:
        """The keys of an event after its first six, from their text; None if only a look at the whole line can tell."""
        known = self._tails[name]
        if text in known:
            return known[text]
        if not text.isascii() or len(text) > 1000:
            return None
        try:
            tail = json.loads("{" + text[1:]) if text != "}" else {}
        except (ValueError, RecursionError):
            return None
        # An empty one has a comma too many. Keys that are there twice: the last counts.
        if (not tail and text != "}") or any(k in tail for k in _HEAD):
            return None
        if any(k not in tail for k, _, _ in CHECKS[name] if k not in _HEAD):
            return None
        if not all(good(tail[k]) for k, good, _ in [*CHECKS[name], *optional_of(name)] if k in tail):
            return None
        if len(known) >= MOST_TAILS:
            known.clear()
        known[text] = tail
        return tail  # type: ignore[no-any-return]

    def _kind(self, text: str) -> Optional[Kind]:
        if text in self._kinds:
            return self._kinds[text]
        found = _KIND.fullmatch(text)
        if not found:
            return None
        e, tid = found[1], int(found[2])
        kind = e, tid, int(found[3]), self._clock(tid), e not in self._unwanted
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[text] = kind
        return kind

    def _learned(self, line: int, what: str, rest: str) -> bool:
        """Is a line of a known form, and are its kind and its end known from now on? The first line is the header, and after the
        last one nothing is right."""
        kind = self._kind(what) if line > 1 and not self.ended else None
        return kind is not None and self._tail(kind[0], rest) is not None

    def _clock(self, tid: Any) -> list[int]:
        return self._clocks.setdefault(tid, [0, 0])

    def _behind(self, line: int, e: str, tid: Any, t: int, clock: list[int]) -> None:
        """An event that is earlier than one of its thread before it: for sorting, it is not."""
        before = clock[0]
        if t < before and tid is not None:
            self.problems.add(line, f"{e}: time goes back by {before - t} ns within thread {tid}")
        clock[0] = t

    @property
    def last_t(self) -> int:
        """The latest time so far."""
        return max((latest for _, latest in self._clocks.values()), default=0)

    def events(self) -> Iterator[Entry]:
        return itertools.chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Entry]]:
        """The batches. The file's state and its problems are always as of the latest batch."""
        if not self.AHEAD or self.path == "-" or not ahead.worthwhile(self.path):
            yield from self._batches()
            return
        try:
            for batch, problems, more, known, error in ahead.made_ahead(self.another()._tell()):
                for line, text in problems:
                    self.problems.add(line, text)
                self.problems.count += more
                vars(self).update(known)
                if error is not None:
                    raise CannotRead(error)
                yield batch
        except ahead.Lost as e:
            raise CannotRead(f"{self.path}: {e}") from None

    def another(self) -> Reader:
        """One like it, for the child."""
        return Reader(self.path, Problems(), self._unwanted)

    def _tell(self) -> Iterator[Told]:
        """Messages for the parent: one for each batch; at the end one with the state again, and the threads' clocks."""
        error = None
        try:
            for batch in self._batches():
                yield self._told(batch)
        except CannotRead as e:
            error = str(e)
        yield self._told([], error, "_clocks")

    def _told(self, batch: list[Entry], error: Optional[str] = None, *more: str) -> Told:
        new, self.problems = self.problems, Problems()
        return batch, new.kept, new.count - len(new.kept), {k: vars(self)[k] for k in (*_KNOWN, *more)}, error

    def _one(self, line: int, text: str, whole: bool, batch: list[Entry]) -> None:
        """A line that is not simple, read by the parser of JSON."""
        self.lines = line
        ev = self._event(text.encode("latin-1"), whole)
        if ev is None:
            return
        t, clock = ev["t"], self._clock(ev.get("tid"))
        if t >= clock[1]:
            clock[0] = clock[1] = t
        else:
            self._behind(line, ev["e"], ev.get("tid"), t, clock)
        if ev["e"] in self._unwanted:
            self.left_out += 1
        else:
            batch.append((clock[1], line, ev))

    def _batches(self) -> Iterator[list[Entry]]:
        line = self.lines
        for block in self._blocks():
            whole = block.endswith(b"\n")
            batch: list[Entry] = []
            kinds = {} if self.ended else self._kinds
            # As Latin-1 every byte is a character, so that a line that does not match can be had back as it was.
            text = block.decode("latin-1")
            for t_, what, p, n, rest, other in LINE.findall(text) if whole else (("",) * 5 + (text,),):
                line += 1
                known = True
                while known:
                    try:
                        e, tid, d, clock, wanted = kinds[what]
                        tail = self._tails[e][rest]
                        break
                    except KeyError:
                        known = self._learned(line, what, rest)
                if not known:
                    self._one(line, f'{{"t":{t_},"e":"{what},"p":"{p}","n":{n}{rest}' if what else other, whole, batch)
                    if self.ended:
                        kinds = {}
                    continue
                t = int(t_)
                if t >= clock[1]:
                    clock[0] = clock[1] = t
                else:
                    self._behind(line, e, tid, t, clock)
                if wanted:
                    batch.append((clock[1], line, {"t": t, "e": e, "tid": tid, "d": d, "p": p, "n": int(n), **tail}))
                else:
                    self.left_out += 1
            self.lines = line
            yield batch
        self._at_end()

    def _at_end(self) -> None:
        self._no_object()
        if self.lines == 0:
            self.problems.add(0, "the file is empty")
        elif not self.header and self.lines == 1 and self.cut:
            self.problems.add(1, "the header is cut")

    @property
    def name(self) -> str:
        """How to call the process, once the header was read."""
        if self.header.get("rank") is not None:
            return f"rank {self.header['rank']}"
        return f"pid {self.header['pid']}" if "pid" in self.header else self.path

    @property
    def order(self) -> tuple[bool, int, str]:
        """The key that files are sorted by: rank, those without one last."""
        rank = self.header.get("rank")
        return rank is None, rank or 0, str(self.header.get("host"))

    @property
    def omitted(self) -> Omitted:
        return Omitted(self.gaps)

    @property
    def complete(self) -> bool:
        return self.ended and not self.cut and not self.dropped and not self.omitted

    @property
    def state(self) -> str:
        if not self.ended:
            how = f"{UNFINISHED} (no end line" + (", last line cut)" if self.cut else ")")
        else:
            how = f"{self.dropped} lines were dropped" if self.dropped else "cut after the end" if self.cut else "complete"
        return f"{'ended' if how == 'complete' else how}; {self.omitted}" if self.omitted else how


def whole_lines(f: BinaryIO) -> Iterator[bytes]:
    """The contents of a file in pieces that end with a newline, but for the last piece and for lines longer than MAX_LINE."""
    rest = b""
    while data := f.read1(BLOCK):  # type: ignore[attr-defined]
        rest += data
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
        while len(rest) >= MAX_LINE:
            yield rest[:MAX_LINE]
            rest = rest[MAX_LINE:]
    if rest:
        yield rest


def in_time_order(events: Iterable[Entry], window: int = WINDOW) -> Iterator[Entry]:
    """Sort by time within a window, at least; events of one thread never change places.

    A thread takes the time of an event before it waits for the file, so lines of several threads are slightly out of order.
    """
    return itertools.chain.from_iterable(_windows(iter(events), window))


def _windows(events: Iterator[Entry], window: int) -> Iterator[list[Entry]]:
    waiting: list[Entry] = []
    while True:
        waiting += itertools.islice(events, 2 * window - len(waiting))
        last = len(waiting) < 2 * window
        waiting.sort(key=operator.itemgetter(0))  # equal times stay in the order of their lines
        if last:
            yield waiting
            return
        yield waiting[:window]
        del waiting[:window]
