# SPDX-License-Identifier: Apache-2.0
"""cupool-trace export: statistics pages for Prometheus.

Here: the text format, to standard output, to a file for node_exporter, or over HTTP. Not here: a reader of traces;
its files are what CUPOOL_STATS_FILE names.
"""
from __future__ import annotations

import argparse
import dataclasses
import glob
import http.server
import ipaddress
import json
import os
import socket
import sys
import tempfile
from typing import Callable, Iterator

from .live import NotAPage, Page, read_page
from .schema import HOST_STATS

HELP = "counters of running processes, for Prometheus"
DESCRIPTION = """\
Reads statistics pages (CUPOOL_STATS_FILE), not traces, and prints them in Prometheus' text format. A quoted pattern such as
'/run/cupool/*.page' is expanded each time, so processes that start later are found. With --textfile the result replaces PATH
at once, for node_exporter's textfile collector; with --listen each request of /metrics reads the pages anew.
cupool_up is 1 while a process updates its page, 0 once it has ended or for 10 s has not."""
FILES = {"nargs": "+", "metavar": "PAGE", "help": "a statistics page (CUPOOL_STATS_FILE), or a quoted pattern of such names"}

# Name of a counter in the page: kind, name in Prometheus, help text. Other counters are left out.
METRICS: "dict[str, tuple[str, str, str]]" = {
    "allocs": ("counter", "allocs_total", "Requests that the pool served."),
    "hits": ("counter", "hits_total", "Of these, without a call of the driver."),
    "misses": ("counter", "misses_total", "Of these, with a segment from the driver."),
    "frees": ("counter", "frees_total", "Blocks that the program freed."),
    "failed": ("counter", "failed_total", "Requests that the pool did not serve."),
    "bypassed": ("counter", "bypassed_total", "Requests that went to the driver unpooled."),
    "segments_alloc": ("counter", "segments_alloc_total", "Segments taken from the driver."),
    "segments_free": ("counter", "segments_free_total", "Segments given back to the driver."),
    "oom": ("counter", "oom_total", "Segments that the driver refused."),
    "order": ("counter", "order_total", "Calls that order frees."),
    "kept": ("counter", "kept_total", "Frees that were kept back."),
    "bound": ("counter", "bound_total", "Requests that came to the bound of held memory."),
    "helped": ("counter", "helped_total", "Refused requests made again because other processes gave memory back."),
    "driver_ns": ("counter", "driver_nanoseconds_total", "Of all threads, in the calls that get segments and give them back."),
    "live": ("gauge", "live_bytes", "In blocks that are handed out, rounded."),
    "held": ("gauge", "held_bytes", "In segments."),
    "paused": ("gauge", "paused_bytes", "In segments whose memory a pause has given to the driver."),
    "idle": ("gauge", "idle_bytes", "In segments of which nothing is handed out."),
    "peak_live": ("gauge", "peak_live_bytes", "Most of live."),
    "peak_held": ("gauge", "peak_held_bytes", "Most of held."),
}
HOST = {**{k: (kind, f"host_{name}", f"Pinned memory: {text}") for k, (kind, name, text) in METRICS.items() if k in HOST_STATS},
        "blocks": ("gauge", "host_blocks_bytes", "Pinned memory: of the blocks that serve live."),
        "waiting": ("gauge", "host_waiting_bytes", "Pinned memory: freed, and perhaps still in use by work."),
        "segments": ("gauge", "host_segments", "Pinned memory: allocations of the driver that are held."),
        "refused": ("counter", "host_refused_total", "Pinned memory: requests that the driver refused at first."),
        "passing": ("gauge", "host_passing_bytes", "Pinned memory: held beyond the bound, until it is freed.")}
PROCESS: "list[tuple[str, str, Callable[[Page], float]]]" = [
    ("up", "1 while the process updates its page.", lambda p: int(p.running())),
    ("start_time_seconds", "When the page was made, since 1970.", lambda p: p.start),
    ("updated_time_seconds", "When the page was last updated, since 1970.", lambda p: p.updated),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--textfile", metavar="PATH", help="write to PATH, at once or not at all")
    to.add_argument("--listen", metavar="ADDRESS:PORT", help="serve /metrics, e.g. on 127.0.0.1:9400, until interrupted; port 0: any")
    parser.add_argument("--beyond-this-host", action="store_true",
                        help="let --listen use an address that others can reach: whoever can connect sees all of it")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(page: Page, device: "int | None" = None) -> str:
    pairs = {"host": page.host, "pid": str(page.pid), "exe": page.exe}
    if page.rank is not None:
        pairs["rank"] = str(page.rank)
    if device is not None:
        pairs["device"] = str(device)
    return "{" + ",".join(f'{k}="{_escaped(v)}"' for k, v in pairs.items()) + "}"


def prometheus(pages: "list[Page]") -> str:
    def lines() -> Iterator[str]:
        for name, text, value in PROCESS if pages else ():
            yield f"# HELP cupool_{name} {text}"
            yield f"# TYPE cupool_{name} gauge"
            for p in pages:
                yield f"cupool_{name}{_labels(p)} {value(p):.15g}"
        for key, (kind, name, text) in METRICS.items():
            of = [(p, device, counters[key]) for p in pages for device, counters in p.devices.items() if key in counters]
            if of:
                yield f"# HELP cupool_{name} {text}"
                yield f"# TYPE cupool_{name} {kind}"
            for p, device, count in of:
                yield f"cupool_{name}{_labels(p, device)} {count}"
        for key, (kind, name, text) in HOST.items():
            values = [(p, p.pinned[key]) for p in pages if p.pinned and key in p.pinned]
            if values:
                yield f"# HELP cupool_{name} {text}"
                yield f"# TYPE cupool_{name} {kind}"
            for p, value in values:
                yield f"cupool_{name}{_labels(p)} {value}"
    return "".join(f"{line}\n" for line in lines())


def read_all(files: "list[str]") -> "tuple[list[Page], int]":
    """The pages, and how many files were none; those are named on stderr. A process is counted once."""
    pages: "dict[tuple[str, int, float], Page]" = {}
    bad = 0
    for given in files:
        for path in [given] if os.path.exists(given) or not glob.has_magic(given) else sorted(glob.glob(given)):
            try:
                page = read_page(path)
                pages.setdefault((page.host, page.pid, page.start), page)
            except NotAPage as e:
                bad += 1
                print(f"cupool-trace: {e}", file=sys.stderr)
    return sorted(pages.values(), key=lambda p: (p.rank is None, p.rank or 0, p.host, p.pid)), bad


def write_textfile(path: str, text: str) -> None:
    """A reader of path sees the old content or the new one, never a part."""
    fd, name = tempfile.mkstemp(prefix=".cupool-", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            os.fchmod(f.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def serve(files: "list[str]", address: str, port: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # seconds, for a client that says nothing: it has a thread of ours

        def do_GET(self) -> None:
            if self.path.split("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = prometheus(read_all(files)[0]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # a scrape a second is no news

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with Server((address, port), Handler) as server:
        host = f"[{address}]" if ":" in address else address
        print(f"listening on http://{host}:{server.server_address[1]}/metrics", flush=True)
        server.serve_forever()


def run(args: argparse.Namespace) -> int:
    if args.listen:
        address, _, port = args.listen.rpartition(":")
        if address.startswith("[") and address.endswith("]") and ":" in address:
            address = address[1:-1]
        try:
            loopback = ipaddress.ip_address(address).is_loopback
            if not 0 <= int(port) < 65536:
                raise ValueError(port)
        except ValueError:
            print(f"cupool-trace: --listen {args.listen}: not ADDRESS:PORT, such as 127.0.0.1:9400", file=sys.stderr)
            return 2
        if not loopback and not args.beyond_this_host:
            print(f"cupool-trace: {address} can be reached from other hosts; --beyond-this-host allows that", file=sys.stderr)
            return 2
        try:
            serve(args.files, address, int(port))
        except OSError as e:
            print(f"cupool-trace: {args.listen}: {e.strerror or e}", file=sys.stderr)
            return 2
    for pattern in args.files:
        if glob.has_magic(pattern) and not os.path.exists(pattern) and not glob.glob(pattern):
            print(f"cupool-trace: {pattern}: no file has such a name (yet)", file=sys.stderr)
    pages, bad = read_all(args.files)
    if args.json:
        text = json.dumps([{**dataclasses.asdict(p), "running": p.running()} for p in pages], indent=1) + "\n"
    else:
        text = prometheus(pages)
    if args.textfile:
        try:
            write_textfile(args.textfile, text)
        except OSError as e:
            print(f"cupool-trace: {args.textfile}: {e.strerror or e}", file=sys.stderr)
            return 2
    else:
        sys.stdout.write(text)
    return 2 if bad else 0
