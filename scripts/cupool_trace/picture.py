# SPDX-License-Identifier: Apache-2.0
"""The curves of plot as a picture that does not move: SVG, or PNG by a rasteriser of filled rectangles and 5x7 letters.

Here: draw (data of plot.page_data -> rectangles, areas, text) and the two surfaces on which it draws. Not here: the
map of addresses and everything that needs a pointer; those are in the page. The PNG is plain because it needs no library; whoever
wants a finer one converts the SVG.
"""
from __future__ import annotations

import bisect
import math
import struct
import zlib
from typing import Optional, Protocol, Sequence, Union

from .schema import Event
from .text import human_size

WIDTH, HEIGHT, HEAD, FOOT, LEFT, RIGHT = 1400, 170, 46, 34, 120, 20
KEYS = 300  # where the legend begins
MOST = 64  # devices in one picture

# Light, then dark; a PNG is light.
COLORS = {
    "page": ("#ffffff", "#12161c"), "text": ("#1c2430", "#e4e8ee"), "dim": ("#5c6675", "#9aa5b4"), "grid": ("#e4e8ee", "#262e39"),
    "line": ("#c3cad5", "#343d4a"), "live": ("#2f74d0", "#4d94ee"), "cached": ("#f2c14e", "#a97f24"), "held": ("#7d9cc4", "#56749c"),
    "registered": ("#8e44ad", "#c58be0"), "host": ("#0e7490", "#5fc9de"), "past": ("#c2410c", "#ff9d5c"),
    "live-range": ("#a3c4ee", "#2c4f7c"), "cached-range": ("#fae3ac", "#574722"), "held-range": ("#c3d2e6", "#36485f"),
    "oom": ("#d0021b", "#ff6b6b"), "trim": ("#0b8a5f", "#3ecf9a"), "policy": ("#6b7280", "#a3adba"), "ipc": ("#7c3aed", "#b794f6"),
    "mark": ("#b45309", "#f0a35e"), "range": ("#0369a1", "#7dd3fc"), "ask": ("#a16207", "#facc15"), "gap": ("#be185d", "#f472b6"),
    "end": ("#4b5563", "#b6c0cc"), "killed": ("#d0021b", "#ff6b6b"),
}
NAMES = {"live": "live", "cached": "cached", "held": "held, live unknown", "registered": "registered", "host": "pinned host memory", "past": "past the pool",
         "oom": "out of memory", "trim": "trim", "policy": "policy", "ipc": "IPC handle", "mark": "mark of the program", "range": "range begins (NVTX)",
         "ask": "other processes asked", "gap": "events left out",
         "end": "end", "killed": "no end line"}
LINES = ("registered", "host", "past")  # curves that are drawn as a line
Span = Optional[tuple[float, float]]  # the filled part of a column of pixels, from its top to its bottom


class Surface(Protocol):
    letter: float  # about how wide one is

    def rect(self, x: float, y: float, w: float, h: float, color: str) -> None: ...

    def area(self, x: int, spans: Sequence[Span], color: str) -> None:
        """Columns of a pixel's width."""

    def text(self, x: float, y: float, text: str, color: str, anchor: str = "start") -> None:
        """y is the middle of the letters."""


class Svg:
    letter = 7.4

    def __init__(self, width: int, height: int) -> None:
        light, dark = ("".join(f".{name}{{fill:{pair[i]}}}" for name, pair in COLORS.items()) for i in (0, 1))
        self._out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
                     'font-family="system-ui, DejaVu Sans, sans-serif" font-size="13">',
                     f"<style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>"]

    def rect(self, x: float, y: float, w: float, h: float, color: str) -> None:
        self._out.append(f'<rect x="{x:.6g}" y="{y:.6g}" width="{w:.6g}" height="{h:.6g}" class="{color}"/>')

    def area(self, x: int, spans: Sequence[Span], color: str) -> None:
        steps, i = [], 0
        while i < len(spans):
            span, j = spans[i], i
            while j < len(spans) and spans[j] == span:
                j += 1
            if span and span[0] < span[1]:
                steps.append(f"M{x + i} {span[1]:.6g}V{span[0]:.6g}H{x + j}V{span[1]:.6g}")
            i = j
        if steps:
            self._out.append(f'<path d="{"".join(steps)}" class="{color}"/>')

    def text(self, x: float, y: float, text: str, color: str, anchor: str = "start") -> None:
        safe = "".join(c if c.isprintable() else "?" for c in text)  # XML has no place for control characters and surrogates
        for a, b in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            safe = safe.replace(a, b)
        self._out.append(f'<text x="{x:.6g}" y="{y + 4.5:.6g}" text-anchor="{anchor}" class="{color}">{safe}</text>')

    def done(self) -> str:
        return "\n".join([*self._out, "</svg>", ""])


# Seven rows of five bits for each character, two hexadecimal digits a row.
_LETTERS = dict(zip(
    " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,:;-_/()+%=<>'\"*#@?![]~", """
    00000000000000 0E11131519110E 040C040404040E 0E11010204081F 1F02040201110E 02060A121F0202 1F101E0101110E 0608101E11110E
    1F010204080808 0E11110E11110E 0E11110F01020C 0E11111F111111 1E11111E11111E 0E11101010110E 1C12111111121C 1F10101E10101F
    1F10101E101010 0E11101711110F 1111111F111111 0E04040404040E 0702020202120C 11121418141211 1010101010101F 111B1515111111
    11191513111111 0E11111111110E 1E11111E101010 0E11111115120D 1E11111E141211 0F10100E01011E 1F040404040404 1111111111110E
    11111111110A04 1111111515150A 11110A040A1111 11110A04040404 1F01020408101F 00000E010F110F 1010161911111E 00000E1010110E
    01010D1311110F 00000E111F100E 0609081C080808 000F11110F010E 10101619111111 04000C0404040E 0200060202120C 10101214181412
    0C04040404040E 00001A15151111 00001619111111 00000E1111110E 00001E111E1010 00000D130F0101 00001619101010 00000E100E011E
    08081C08080906 0000111111130D 00001111110A04 0000111115150A 0000110A040A11 000011110F010E 00001F0204081F 00000000000C0C
    000000000C0408 000C0C000C0C00 000C0C000C0408 0000001F000000 0000000000001F 00010204081000 02040808080402 08040202020408
    0004041F040400 18190204081303 00001F001F0000 02040810080402 08040201020408 0C040800000000 0A0A0A00000000 0004150E150400
    0A0A1F0A1F0A0A 0E11171517100E 0E110102040004 04040404040004 0E08080808080E 0E02020202020E 00000815020000""".split()))


class Raster:
    SCALE = 2  # of letters
    letter = 6.0 * SCALE

    def __init__(self, width: int, height: int) -> None:
        self.w, self.h = width, height
        self._rgb = {name: bytes.fromhex(light[1:]) for name, (light, _) in COLORS.items()}
        self._rows = [bytearray(self._rgb["page"] * width) for _ in range(height)]

    def rect(self, x: float, y: float, w: float, h: float, color: str) -> None:
        x0, x1 = max(0, round(x)), min(self.w, max(round(x) + 1, round(x + w)))
        y0, y1 = max(0, round(y)), min(self.h, max(round(y) + 1, round(y + h)))
        if x1 > x0:
            line = self._rgb[color] * (x1 - x0)
            for row in self._rows[y0:y1]:
                row[3 * x0:3 * x1] = line

    def area(self, x: int, spans: Sequence[Span], color: str) -> None:
        rgb = self._rgb[color]
        for i, span in enumerate(spans):
            if span:
                at = 3 * (x + i)
                for row in self._rows[max(0, round(span[0])):round(span[1])]:
                    row[at:at + 3] = rgb

    def text(self, x: float, y: float, text: str, color: str, anchor: str = "start") -> None:
        k = self.SCALE
        width = 6 * k * len(text)
        left = x - (width if anchor == "end" else width / 2 if anchor == "middle" else 0)
        for c in text:
            rows = bytes.fromhex(_LETTERS.get(c, _LETTERS["?"]))
            for j, bits in enumerate(rows):
                for i in range(5):
                    if bits >> (4 - i) & 1:
                        self.rect(left + i * k, y + (j - 3.5) * k, k, k, color)
            left += 6 * k

    def done(self) -> bytes:
        def chunk(name: bytes, content: bytes) -> bytes:
            return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

        # Each row is preceded by the number of its filter: 0, none.
        return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", self.w, self.h, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in self._rows), 6)) + chunk(b"IEND", b""))


def columns(series: Event, name: str, offset: int, end: int, t0: int, t1: int, n: int) -> tuple[list[int], list[int]]:
    """The least and the greatest value in each of n columns of the time from t0 to t1; -1 where there is none."""
    q, ts, width = series[name], series["t"], series["width_ns"]
    low, high = [-1] * n, [-1] * n

    def put(a: int, b: int, least: int, most: int) -> None:
        for x in range(max(0, a), min(n - 1, b) + 1):
            high[x] = max(high[x], most)
            low[x] = least if low[x] < 0 else min(low[x], least)

    def column(t: int) -> int:
        return (t + offset - t0) * n // (t1 - t0)

    last = q["last"]
    least, most = q.get("min", last), q.get("max", last)
    for i in range(max(0, bisect.bisect_right(ts, t0 - offset) - 1), len(ts)):
        a, until = column(ts[i]), column(ts[i + 1] if i + 1 < len(ts) else max(end, ts[i]))
        e = min(column(ts[i] + width - 1), until)
        put(a, e, least[i], most[i])
        put(e, until, last[i], last[i])
    return low, high


def time_step(span: float) -> float:
    raw = span / 8
    power = math.pow(10, math.floor(math.log10(raw)))
    return next(k * power for k in (1.0, 2.0, 5.0, 10.0) if raw <= k * power * 1.0000001)


def mark(on: Surface, kind: str, x: float, y: float) -> None:
    """Small figures made of rectangles, so that both surfaces can draw them."""
    if kind == "oom":
        for i in range(5):
            on.rect(x - 5 + i, y - 5 + 2 * i, 10 - 2 * i, 2, kind)
    elif kind == "trim":
        for i in range(-4, 5):
            on.rect(x - 5 + abs(i), y + i, 10 - 2 * abs(i), 1, kind)
    elif kind == "killed":
        for i in range(-4, 5):
            on.rect(x + i - 1, y + i, 2, 1, kind)
            on.rect(x - i - 1, y + i, 2, 1, kind)
    elif kind in ("end", "mark", "range", "gap"):
        on.rect(x - 1, y - 5, 2, 10, kind)
    else:
        on.rect(x - 3, y - 3, 6, 6, kind)


def line(tops: Sequence[Optional[float]], half: int) -> list[Span]:
    """A line, so many pixels above and below these heights: each column goes as far as the one before it was."""
    out: list[Span] = []
    before = None
    for top in tops:
        start = top if before is None else before
        out.append(None if top is None or start is None else (min(top, start) - half, max(top, start) + half))
        before = top
    return out


def draw_track(on: Surface, data: Event, track: Event, y: int, t0: int, t1: int) -> None:
    process, series = data["processes"][track["process"]], track["series"]
    n, top, ground = WIDTH - LEFT - RIGHT, y + HEAD, y + HEAD + HEIGHT - FOOT
    figures = track["figures"]
    gpu = " ".join(filter(None, [figures["name"], (figures["uuid"] or "")[:8]]))  # ranks may share one, and each call it its device 0
    title = f"{process['name']} device {track['device']}{gpu and f' ({gpu})'}, {process['host']}, {process['exe']} {process['pid']}"
    peaks = "".join(f", peak {name} {human_size(track['peaks'][name]['n'])}" for name in ("live", "held") if name in track["peaks"])
    on.text(LEFT, y + 14, f"{title:.60s}{peaks}", "text")
    curves = {name: columns(series, name, process["offset_ns"], process["last_ns"], t0, t1, n)
              for name in ("held", "live", "registered", "host", "past") if name in series}
    most = max(1, *(v for _, high in curves.values() for v in high)) * 1.06
    step = 1 << max(0, math.ceil(math.log2(most / 4)))
    full = math.ceil(most / step) * step

    def up(v: float) -> float:
        return ground - (ground - top) * v / full

    for k in range(full // step + 1):
        on.rect(LEFT, up(k * step), n, 1, "grid")
        on.text(LEFT - 8, up(k * step), "0" if k == 0 else human_size(k * step).replace(".0 ", " "), "dim", "end")
    each = time_step(t1 - t0)
    digits = max(0, math.ceil(9 - math.log10(each)))
    for i in range(math.ceil(t0 / each), math.floor(t1 / each) + 1):
        x = LEFT + (i * each - t0) / (t1 - t0) * n
        on.rect(x, top, 1, ground - top + 4, "grid")
        on.text(min(x, WIDTH - 60), ground + 17, f"{i * each / 1e9:.{digits}f} s", "dim", "middle")
    for name, (low, high) in curves.items():
        if name in LINES:  # `registered` is most of the held memory: an area would hide the rest. With an edge, to be seen on any of them
            tops = [None if v < 0 else up(v) for v in high]
            on.area(LEFT, line(tops, 3), "page")
            on.area(LEFT, line(tops, 1), name)
            continue
        color = "cached" if name == "held" and "live" in series else name
        on.area(LEFT, [None if v < 0 else (up(v), ground) for v in high], color + "-range")
        on.area(LEFT, [None if v < 0 else (up(v), ground) for v in low], color)
    on.rect(LEFT, ground, n, 1, "line")
    for kind in ("policy", "ipc", "trim", "ask", "range", "mark", "gap", "end", "killed", "oom"):  # the most important on top
        times = outermost(process) if kind == "range" else [t for t, k, _, _ in track["marks"] if k == kind]
        xs = [LEFT + (t + process["offset_ns"] - t0) / (t1 - t0) * n for t in times]
        last = -99.0
        for x in xs:
            # As many lines as leave the curves to be seen, and no mark on another.
            if kind in ("oom", "killed", "end", "mark", "gap") and len(xs) < 40:
                on.rect(x, top, 1, ground - top, kind)
            if x - last > 5:
                mark(on, kind, x, top - 9)
                last = x


def outermost(process: Event) -> list[int]:
    """Where ranges of NVTX begin that lie in no other one."""
    bands = process.get("bands")
    return [t for t, row in zip(bands["t0"], bands["row"]) if bands["rows"][row]["depth"] == 0] if bands else []


def legend(processes: list[Event], tracks: list[Event], letter: float) -> list[tuple[str, int, int]]:
    """The keys of the legend, and where each stands: beside the title, in as many lines as they take."""
    present = {m[1] for track in tracks for m in track["marks"]} | ({"range"} if any(map(outermost, processes)) else set()) | {
        name for track in tracks for name in (("live", "cached") if "live" in track["series"] else ("held",))} | {
        name for track in tracks for name in LINES if name in track["series"]}
    out: list[tuple[str, int, int]] = []
    x, y = KEYS, 18
    for name in NAMES:
        if name in present:
            width = round(letter * len(NAMES[name]))
            if x + 12 + width > WIDTH - RIGHT:
                x, y = KEYS, y + 20
            out.append((name, x, y))
            x += width + 42
    return out


def draw(data: Event, surface: type) -> Union[str, bytes]:
    tracks = data["tracks"][:MOST]
    keys = legend(data["processes"], tracks, surface.letter)
    top = max((y for _, _, y in keys), default=18) + 22
    height = top + 10 + max(1, len(tracks)) * (HEAD + HEIGHT) + 24
    on = surface(WIDTH, height)
    on.rect(0, 0, WIDTH, height, "page")
    on.text(12, 18, "GPU memory over time", "text")
    for name, x, y in keys:
        if name in ("live", "cached", "held"):
            on.rect(x - 6, y - 6, 12, 12, name)
        elif name in LINES:
            on.rect(x - 6, y - 1, 12, 2, name)
        else:
            mark(on, name, x, y)
        on.text(x + 12, y, NAMES[name], "dim")
    shown = [data["processes"][track["process"]] for track in tracks]
    t0 = min((p["offset_ns"] + data["begin_ns"] for p in shown), default=0)
    t1 = max((p["offset_ns"] + min(p["last_ns"], data["end_ns"]) for p in shown), default=0)
    t1 = max(t1, t0 + 1000)
    t1 += (t1 - t0) // 100
    for i, track in enumerate(tracks):
        draw_track(on, data, track, top + i * (HEAD + HEIGHT), t0, t1)
    bottom = top + 10 + len(tracks) * (HEAD + HEIGHT) + 6
    if len(tracks) < len(data["tracks"]):
        on.text(WIDTH - RIGHT, bottom, f"{len(data['tracks']) - len(tracks)} more devices are not drawn", "text", "end")
    elif not tracks:
        on.text(WIDTH / 2, 120, "no event on any device", "dim", "middle")
    if tracks:
        on.text(LEFT, bottom, "fainter: only at times, within the width of a pixel or more", "dim")
    done: Union[str, bytes] = on.done()
    return done


def svg(data: Event) -> str:
    done = draw(data, Svg)
    assert isinstance(done, str)
    return done


def png(data: Event) -> bytes:
    done = draw(data, Raster)
    assert isinstance(done, bytes)
    return done
