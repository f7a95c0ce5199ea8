# SPDX-License-Identifier: Apache-2.0
"""Functions and lines of frames, by the symboliser that this machine has.

Here: which file an object of a trace is today (its build id must be the traced one), and what eu-addr2line, llvm-symbolizer or
addr2line answers for the addresses in it. Not here: a reader of symbols or of debugging information; only a build id is read.
Nothing fails: frames without names stay object and offset, and one line on stderr says why.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from typing import BinaryIO, Iterable, NamedTuple, Optional

from .frames import Frames, Place
from .options import folder
from .replay import Rank

PATIENCE = 120  # seconds for the addresses of one object; the debugging information of some has gigabytes
SHOWN = 4  # objects that the line on stderr names
SYSTEM = "/usr/lib/debug"

# Programs in the order of preference. All of them print an address, then a function and a line for each inlined level. binutils'
# addr2line takes the nearest symbol for a function, however far away that is: without a line its function is only to be trusted where
# the file has the symbols of all functions.
TOOLS: dict[str, tuple[list[str], bool]] = {
    "eu-addr2line": (["-a", "-f", "-i", "-C", "-e"], True),
    "llvm-symbolizer": (["--output-style=GNU", "-a", "-f", "-i", "-C", "-e"], True),
    "addr2line": (["-a", "-f", "-i", "-C", "-e"], False),
}
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LINE = re.compile(r"(.+?):([0-9]+)(?::[0-9]+)?(?: \(discriminator [0-9]+\))?")
_INLINED = re.compile(r" inlined at .*:[0-9]+(?::[0-9]+)? in .*")
_ID = re.compile(r"[0-9a-f]{4,64}")


class Object(NamedTuple):
    """A file as a process had it."""
    path: str
    id: str  # its build id; "" if it had none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug-dir", metavar="DIR", type=folder, action="append", default=[],
                        help="a folder with debugging information by build ids: .build-id/ab/cdef.debug, or abcdef/debuginfo as debuginfod "
                             "keeps it; may be given several times")
    parser.add_argument("--no-symbols", action="store_true", help="frames as object and offset; look at no other file")


def _notes(f: BinaryIO) -> Iterable[bytes]:
    """The contents of each segment of notes of an ELF file."""
    ident = f.read(16)
    if len(ident) < 16 or ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        return
    order, wide = "<>"[ident[5] - 1], ident[4] == 2
    header = f.read(48 if wide else 36)
    *_, phoff, _, _, _, size, count, _, _, _ = struct.unpack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), header)
    for i in range(count):
        f.seek(phoff + i * size)
        kind, *rest = struct.unpack(order + ("IIQQQQQQ" if wide else "IIIIIIII"), f.read(56 if wide else 32))
        offset, length, align = (rest[1], rest[4], rest[6]) if wide else (rest[0], rest[3], rest[6])
        if kind == 4 and length < 1 << 20:
            f.seek(offset)
            data, step = f.read(length), 8 if align == 8 else 4
            at = 0
            while at + 12 <= len(data):
                name, desc, tag = struct.unpack_from(order + "III", data, at)
                begin = (at + 12 + name + step - 1) // step * step
                if tag == 3 and data[at + 12:at + 12 + name] == b"GNU\0":
                    yield data[begin:begin + desc]
                at = (begin + desc + step - 1) // step * step


def build_id(path: str) -> str:
    """The build id of a file; "" if it has none, or is no such file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            return ""
        with open(path, "rb") as f:
            return next(iter(_notes(f)), b"").hex()
    except (OSError, struct.error, OverflowError, ValueError):
        return ""


def debug_folders(given: list[str]) -> list[str]:
    """Where files by build ids may be: the folders that the user names, debuginfod's cache, the system's."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [*given, os.environ.get("DEBUGINFOD_CACHE_PATH") or os.path.join(cache, "debuginfod_client"), SYSTEM]


def debug_file(id: str, folders: list[str]) -> Optional[str]:
    """The file with the debugging information of this build id."""
    if not _ID.fullmatch(id):
        return None
    for folder in folders:
        for name in (os.path.join(".build-id", id[:2], id[2:] + ".debug"), os.path.join(id[:2], id[2:] + ".debug"), os.path.join(id, "debuginfo"),
                     os.path.join("buildid", id, "debuginfo")):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path):  # debuginfod notes what it has not found as an empty file
                return path
    return None


def file_of(o: Object, folders: list[str], began: Optional[int]) -> tuple[Optional[str], str]:
    """The file in which to look for an object's names; or None, and why. began: when the first process with it did, in ns."""
    found = debug_file(o.id, folders)
    if found:
        return found, ""
    if not o.path.startswith("/") or "\0" in o.path:
        return None, "its path is not in the trace"
    try:
        about = os.stat(o.path)
    except OSError:
        return None, f"not found at {o.path}"
    if not stat.S_ISREG(about.st_mode):
        return None, "no file"
    if o.id and build_id(o.path) != o.id:
        return None, "has another build id now"
    if not o.id and began is not None and about.st_mtime_ns > began:
        return None, "has no build id and is newer than the trace"
    return o.path, ""


def tool_find() -> Optional[tuple[list[str], bool]]:
    """The command to which the file's name is to be added; True if its functions without a line can be trusted."""
    for name, (options, trusted) in TOOLS.items():
        path = shutil.which(name)
        if path:
            return [path, *options], trusted
    return None


def has_symbols(path: str) -> bool:
    """The file has the symbols of all its functions, not only of those that it exports; False where readelf is not there to tell."""
    readelf = shutil.which("readelf")
    if not readelf:
        return False
    done = subprocess.run([readelf, "-SW", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace", check=False)
    return re.search(r" \.symtab +SYMTAB ", done.stdout) is not None


def parse(text: str, trusted: bool) -> dict[int, list[Place]]:
    """The answer of the tool, by address. Levels of which it knows neither function nor line are left out."""
    out: dict[int, list[Place]] = {}
    places: list[Place] = []
    lines = iter(text.splitlines())
    for line in lines:
        if _ADDRESS.fullmatch(line):
            places = out.setdefault(int(line, 16), [])
            continue
        function, known = _INLINED.sub("", line), _LINE.fullmatch(next(lines, ""))
        if known and known[1] != "??" and int(known[2]):
            places.append(Place("?" if function == "??" else function, known[1], int(known[2])))
        elif function != "??" and trusted:
            places.append(Place(function, "", 0))
    return out


def ask(tool: tuple[list[str], bool], path: str, addresses: list[int]) -> tuple[dict[int, list[Place]], str]:
    """The lines at these addresses of a file; or nothing, and why."""
    command, trusted = tool
    # No server of debugging information is asked: reading a trace waits for no network.
    env = dict(os.environ, DEBUGINFOD_URLS="", LC_ALL="C")
    name = os.path.basename(command[0])
    try:
        done = subprocess.run([*command, path], input="".join(f"{a:#x}\n" for a in addresses), env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace", timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"{name} took more than {PATIENCE} s"
    except OSError as e:
        return {}, f"{name}: {e.strerror}"
    known = parse(done.stdout, trusted or has_symbols(path))
    return known, "" if known else f"{name} cannot read it"


def tell(missing: dict[str, str]) -> None:
    """One line about all objects whose frames stay offsets."""
    if missing:
        named = "; ".join(f"{name}: {why}" for name, why in sorted(missing.items())[:SHOWN])
        more = f"; and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        print(f"cupool-trace: frames stay object and offset ({named}{more})", file=sys.stderr)


Wanted = dict[Object, dict[int, list[tuple[Frames, int]]]]  # by the address in the file: the frames that lie there


def wanted_of(every: list[Frames]) -> Wanted:
    out: Wanted = {}
    for frames in every:
        for number, (o, p) in frames.lies.items():
            ev = frames.objects.get(o)
            if ev is not None:
                # A frame is the address to which a call returns: the call itself ends one byte before.
                out.setdefault(Object(ev["path"], ev["id"]), {}).setdefault(p - int(ev["bias"], 16) - 1, []).append((frames, number))
    return out


def name_frames(every: list[Frames], args: argparse.Namespace, began: Optional[int] = None) -> None:
    """Find the functions and lines of all frames, each object's at once, however many traces it is in."""
    wanted = {} if args.no_symbols else wanted_of(every)
    if not wanted:
        return
    tool = tool_find()
    if tool is None:
        print(f"cupool-trace: frames stay object and offset: none of {', '.join(TOOLS)} is on PATH; they are in the packages elfutils, llvm, binutils",
              file=sys.stderr)
        return
    folders = debug_folders(args.debug_dir)
    missing: dict[str, str] = {}
    for o, at in wanted.items():
        path, why = file_of(o, folders, began)
        known: dict[int, list[Place]] = {}
        if path:
            known, why = ask(tool, path, sorted(at))
        if why:
            missing[os.path.basename(o.path) or "an object"] = why
        for address, places in known.items():
            for frames, number in at.get(address, ()):
                frames.places[number] = places
    tell(missing)


def name_ranks(ranks: list[Rank], args: argparse.Namespace) -> None:
    began = [r.header["t0_unix_ns"] for r in ranks if "t0_unix_ns" in r.header]
    name_frames([r.replay.frames for r in ranks], args, min(began, default=None))
