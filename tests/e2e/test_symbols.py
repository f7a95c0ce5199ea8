# SPDX-License-Identifier: Apache-2.0
"""Names of frames, from a program's run to what cupool-trace prints: each kind of program, with each symboliser that this machine has,
and with none.

The programs are compiled here, because their files are stripped, moved and replaced. Not here: the build ids of odd objects (the unit
test object), and what symbolisers say of odd files (tests/scripts/test_symbols.py).
"""

import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Iterator, Optional

from e2e import SANITIZE, SIM, Case, Trace, need, tool

STACKS = {"CUPOOL_TRACE_EVENTS": "segment,alloc", "CUPOOL_TRACE_STACKS": "1"}
TOOLS = ("eu-addr2line", "llvm-symbolizer", "addr2line")

INLINED = """\
extern "C" int cudaMalloc(void **, unsigned long);

namespace model {
template <typename T> struct tensor {
    static inline __attribute__((always_inline)) void *take(int n)
    {
        void *p = nullptr;
        return cudaMalloc(&p, n * sizeof(T)) ? nullptr : p; /* line 8 */
    }
};

static inline __attribute__((always_inline)) void *layer(int n)
{
    return tensor<double>::take(n); /* line 14 */
}

__attribute__((noinline)) void *forward(int n)
{
    void *p = layer(n); /* line 19 */
    __asm__ volatile("" : : "r"(p));
    return p;
}
}

int main()
{
    return !model::forward(1000); /* line 27 */
}
"""
LIBRARY = """\
int cudaMalloc(void **, unsigned long);
static __attribute__((noinline)) void *buffer_take(unsigned long n)
{
    void *p = 0;
    int rc = cudaMalloc(&p, n); /* line 5 */
    __asm__ volatile("" : : "r"(rc));
    return p;
}
void *work_take(unsigned long n)
{
    void *p = buffer_take(n); /* line 11 */
    __asm__ volatile("" : : "r"(p));
    return p;
}
"""
PROGRAM = """\
void *work_take(unsigned long);
int main(void)
{
    return !work_take(4096); /* line 4 */
}
"""


def tools() -> Iterator[str]:
    return (name for name in TOOLS if shutil.which(name))


@unittest.skipIf(SANITIZE != "none", "programs that are compiled here have no sanitizer")
class Symbols(Case):
    def compile(self, output: str, text: str, *options: object, compiler: str = "cc") -> Path:
        source = self.tmp / (Path(output).stem + (".cc" if compiler == "c++" else ".c"))
        source.write_text(text)
        subprocess.run([need(compiler), "-g", "-O2", source, "-o", self.tmp / output, *map(str, options), SIM / "libcudart.so.13",
                        f"-Wl,-rpath,{SIM}:{self.tmp}"], check=True)
        return self.tmp / output

    def path_with(self, *names: str) -> str:
        """A PATH on which no program is but these."""
        folder = self.folder()
        for name in names:
            (folder / name).symlink_to(str(shutil.which(name)))
        return str(folder)

    def traced(self, program: Path, **env: str) -> Trace:
        return self.one_trace(self.go(program, **STACKS, **env))

    def stack(self, trace: Trace, path: Optional[str], *options: object, said: str = "^$") -> "list[str]":
        """The stack of the trace's only leak, as `leaks` names it. path: PATH."""
        done = tool.run("leaks", "--json", *options, trace.path,
                        env=dict(os.environ, PATH=path or "", HOME=str(self.tmp), DEBUGINFOD_CACHE_PATH=str(self.tmp / "nothing")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, said)
        stacks = json.loads(done.stdout)["stacks"]
        self.assertEqual(len(stacks), 1)
        return list(stacks[0]["stack"])

    def test_inlined_functions(self) -> None:
        """Each level has a frame of its own, in C++'s names."""
        if not shutil.which("c++"):
            self.skipTest("no C++ compiler")
        trace = self.traced(self.compile("inlined", INLINED, compiler="c++"))
        for name in tools():
            with self.subTest(name):
                frames = self.stack(trace, self.path_with(name))[:4]
                self.assertRegex(frames[0], r"^(model::tensor<double>::)?take(\(int\))? \(inlined\.cc:8\)$")
                self.assertRegex(frames[1], r"^(model::)?layer(\(int\))? \(inlined\.cc:14\)$")
                self.assertRegex(frames[2], r"^model::forward\(int\) \(inlined\.cc:19\)$")
                self.assertEqual(frames[3], "main (inlined.cc:27)")

    def test_a_program_at_a_fixed_address(self) -> None:
        """Its frames have the addresses of the file: what addr2line takes by hand, too."""
        for option in ("-no-pie", "-pie"):
            program = self.compile("fixed", LIBRARY + PROGRAM.replace("void *work_take(unsigned long);\n", ""), option)
            trace = self.traced(program)
            for name in tools():
                with self.subTest(option, tool=name):
                    self.assertEqual(self.stack(trace, self.path_with(name))[:3], ["buffer_take (fixed.c:5)", "work_take (fixed.c:11)", "main (fixed.c:17)"])
            frames = {e["f"]: e for e in trace.of("frame")}
            own = [frames[f] for f in trace.of("alloc")[0]["f"] if frames[f]["at"].startswith("fixed+")]
            self.assertEqual({e["o"] for e in own}, {1})
            by_hand = subprocess.run([need("addr2line"), "-e", program, hex(int(own[0]["at"].split("+")[1], 16) - 1)], capture_output=True, text=True)
            self.assertRegex(by_hand.stdout, r"fixed\.c:5\b")
            if option == "-no-pie":
                self.assertEqual((trace.of("object")[0]["bias"], own[0]["at"]), ("0x0", f"fixed+{own[0]['p']}"))

    def user_of_work(self) -> Path:
        self.work_so = self.compile("libwork.so", LIBRARY, "-shared", "-fPIC", "-Wl,--build-id")
        return self.compile("user", PROGRAM, self.work_so)

    def strip(self, debug: Path, *options: object) -> None:
        """The library's debugging information goes to a file of its own, and the library has none."""
        debug.parent.mkdir(parents=True, exist_ok=True)
        objcopy = need("objcopy")
        subprocess.run([objcopy, "--only-keep-debug", self.work_so, debug], check=True)
        subprocess.run([objcopy, "--strip-all", *map(str, options), self.work_so], check=True)

    def test_the_objects_of_a_trace(self) -> None:
        program = self.user_of_work()
        trace = self.traced(program)
        objects = {e["path"]: e for e in trace.of("object")}
        self.assertEqual(len(objects), len(trace.of("object")))  # each once
        self.assertLessEqual({str(program), str(self.work_so)}, set(objects))
        self.assertLessEqual({e["o"] for e in trace.of("frame")}, {e["o"] for e in objects.values()})
        for path in (program, self.work_so):
            notes = subprocess.run([need("readelf"), "-nW", path], capture_output=True, text=True).stdout
            self.assertIn(f"Build ID: {objects[str(path)]['id']}\n", notes)
        self.assert_fine(trace.path)

    def test_long_paths(self) -> None:
        """The longest that fits into a line is whole; a longer one is not told at all, rather than cut."""
        program = self.compile("fixed", LIBRARY + PROGRAM.replace("void *work_take(unsigned long);\n", ""))
        for length, told in ((559, True), (560, False), (3000, False)):
            folder = self.folder()
            while length - len(str(folder)) > 250:
                folder /= "d" * 200
            folder.mkdir(parents=True, exist_ok=True)
            long = folder / ("x" * (length - len(str(folder)) - 1))
            self.assertEqual(len(str(long)), length)
            shutil.copy(program, long)
            trace = self.traced(long)
            self.assertEqual((trace.of("object")[0]["path"], trace.events[-1]["dropped"]), (str(long) if told else "", 0))
            self.assertEqual(len(trace.of("frame")), len({e["f"] for e in trace.of("frame")}))
            self.assertTrue(all("o" in e for e in trace.of("frame")))
            self.assert_fine(trace.path)

    def test_a_separate_debug_file(self) -> None:
        """By its link, beside the library and in .debug; and by its build id in a folder that is named, in the two layouts."""
        program = self.user_of_work()
        whole = self.work_so.read_bytes()
        id = next(e["id"] for e in self.traced(program).of("object") if e["path"].endswith("/libwork.so"))
        beside = self.tmp / "libwork.so.debug"
        ids = self.tmp / "ids"
        wanted = ["buffer_take (libwork.c:5)", "work_take (libwork.c:11)", "main (user.c:4)"]
        for debug, options in ((beside, []), (self.tmp / ".debug" / beside.name, []),
                               (ids / ".build-id" / id[:2] / f"{id[2:]}.debug", ["--debug-dir", self.tmp, "--debug-dir", ids]),
                               (ids / id / "debuginfo", ["--debug-dir", ids])):
            self.work_so.write_bytes(whole)
            self.strip(debug)
            if not options:
                subprocess.run([need("objcopy"), f"--add-gnu-debuglink={debug}", self.work_so], check=True)
            trace = self.traced(program)
            for name in tools():
                with self.subTest(debug=debug, tool=name):
                    self.assertEqual(self.stack(trace, self.path_with(name), *options)[:3], wanted)
            debug.unlink()
        trace = self.traced(program)
        for name in tools():  # no debugging information at all: no static function's name, and no wrong one
            with self.subTest(debug=None, tool=name):
                frames = self.stack(trace, self.path_with(name, "readelf"))
                self.assertRegex(frames[0], r"^libwork\.so\+0x[0-9a-f]+$")
                self.assertRegex(frames[1], r"^(work_take \(libwork\.so\)|libwork\.so\+0x[0-9a-f]+)$")

    def test_another_build(self) -> None:
        """A library that was built anew since has other lines at these addresses: none of them is told. Its debug file still names them."""
        program = self.user_of_work()
        trace = self.traced(program)
        id = next(e["id"] for e in trace.of("object") if e["path"].endswith("/libwork.so"))
        folder = self.tmp / "ids"
        debug = folder / ".build-id" / id[:2] / f"{id[2:]}.debug"
        self.strip(debug)
        self.compile("libwork.so", "\n\n\n" + LIBRARY, "-shared", "-fPIC", "-Wl,--build-id")
        name = next(tools(), None)
        if name is None:
            self.skipTest("no symboliser")
        path = self.path_with(name)
        said = r"^cupool-trace: frames stay object and offset \(libwork\.so: has another build id now\)\n$"
        frames = self.stack(trace, path, said=said)
        self.assertRegex("\n".join(frames[:3]), r"^libwork\.so\+0x[0-9a-f]+\nlibwork\.so\+0x[0-9a-f]+\nmain \(user\.c:4\)$")
        self.assertEqual(self.stack(trace, path, "--debug-dir", folder)[:2], ["buffer_take (libwork.c:5)", "work_take (libwork.c:11)"])
        self.work_so.unlink()
        self.stack(trace, path, said=r"^cupool-trace: [^\n]*\(libwork\.so: not found at /[^\n]*/libwork\.so\)\n$")

    def test_no_build_id(self) -> None:
        """The file that is there is believed to be it, unless it is newer than the trace."""
        program = self.compile("fixed", LIBRARY + PROGRAM.replace("void *work_take(unsigned long);\n", ""), "-Wl,--build-id=none")
        os.utime(program, (1, 1))
        trace = self.traced(program)
        name = next(tools(), None)
        if name is None:
            self.skipTest("no symboliser")
        path = self.path_with(name)
        self.assertEqual(trace.of("object")[0]["id"], "")
        self.assertEqual(self.stack(trace, path)[0], "buffer_take (fixed.c:5)")
        os.utime(program)
        self.assertRegex(self.stack(trace, path, said="has no build id and is newer than the trace")[0], r"^fixed\+0x")

    def test_symbols_alone(self) -> None:
        """A program without debugging information that is not stripped: functions of all kinds, and no lines. addr2line alone cannot tell
        such a program from a stripped one."""
        program = self.compile("fixed", LIBRARY + PROGRAM.replace("void *work_take(unsigned long);\n", ""))
        subprocess.run([need("objcopy"), "--strip-debug", program], check=True)
        trace = self.traced(program)
        for names in [[name] for name in tools() if name != "addr2line"] + ([["addr2line", "readelf"]] if shutil.which("addr2line") else []):
            with self.subTest(names):
                self.assertEqual(self.stack(trace, self.path_with(*names))[:2], ["buffer_take (fixed)", "main (fixed)"])
        if shutil.which("addr2line"):
            self.assertRegex(self.stack(trace, self.path_with("addr2line"))[0], r"^fixed\+0x")

    def test_no_symboliser(self) -> None:
        """Offsets, and one line that names the missing tool or file; no such line with --no-symbols."""
        trace = self.traced(self.user_of_work())
        for options, said in (((), r"^cupool-trace: frames stay object and offset: none of eu-addr2line, [^\n]*elfutils[^\n]*\n$"), (("--no-symbols",), "^$")):
            frames = self.stack(trace, self.path_with(), *options, said=said)
            self.assertRegex("\n".join(frames[:3]), r"^libwork\.so\+0x[0-9a-f]+\nlibwork\.so\+0x[0-9a-f]+\nuser\+0x[0-9a-f]+$")

    def test_who_else_names_them(self) -> None:
        """summary, the page and PyTorch's viewer."""
        trace = self.traced(self.user_of_work())
        if not next(tools(), None):
            self.skipTest("no symboliser")
        self.assertRegex(tool.run("summary", trace.path).stdout, r"\nbuffer_take \(libwork\.c:5\) +")
        for command, name in (("plot", "page.html"), ("to-pytorch", "snapshot.pickle")):
            self.assertEqual(tool.run(command, trace.path, "-o", self.tmp / name).returncode, 0)
        self.assertIn('"buffer_take (libwork.c:5)"', (self.tmp / "page.html").read_text())
        snapshot = (self.tmp / "snapshot.pickle").read_bytes()
        self.assertTrue(re.search(rb"/libwork\.c", snapshot) and b"buffer_take" in snapshot)
