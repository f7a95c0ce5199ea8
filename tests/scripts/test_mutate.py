# SPDX-License-Identifier: Apache-2.0
"""scripts/mutate: what it makes of C and of lists, that it tells mutants that are noticed from those that are not, in a project of
twenty lines, and that hand-written ones are found wherever their code is.
"""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
import drawn  # noqa: E402
import generate  # noqa: E402
import written  # noqa: E402
from mutant import Mutant  # noqa: E402

PROJECT = {
    "meson.build": """project('small', 'c')
lib = static_library('pool', 'pool/pool.c')
test('pool', executable('test_pool', 'tests/unit/test.c', link_with: lib), suite: 'unit')
""",
    "pool/pool.c": """int clamp(int x);
int unasked(int x);
int count(int n);

int clamp(int x)
{
    if (x > 10)
        return 10; /* if (x > 10) */
    return x;
}

int unasked(int x)
{
    return x + 1;
}

int count(int n)
{
    int sum = 0;

    while (n > 0) {
        sum += n;
        n -= 1;
    }
    return sum;
}
""",
    "tests/unit/test.c": """int clamp(int x);
int count(volatile int n);
int main(void)
{
    return clamp(11) != 10 || clamp(3) != 3 || count(2) != 3;
}
""",
}


def texts(source: str, changes: "list[generate.Change]") -> "set[tuple[str, str]]":
    return {(" ".join(source[c.start:c.end].split()), c.new) for c in changes}


class Generator(unittest.TestCase):
    def test_what_is_a_target(self) -> None:
        """Comments, text, types, prototypes, sizes and asserts are none."""
        source = """#include <a.h>
#define LIMIT (4 * 8)
_Static_assert(1 + 1 == 2, "a < b");
int f(int a, char *b);
static const int table[3] = {7};
int f(int a, char *b)
{
    char text[64]; /* a < b */
    int *c = g("a < b", a && b(a));

    h(a,
      b);
    return *c - a;
}
"""
        self.assertEqual(texts(source, generate.changes(source)), {
            ("4", "5"), ("4", "3"), ("8", "9"), ("8", "7"), ("*", "/"), ("7", "8"), ("7", "6"), ("&&", "||"), ("a &&", ""),
            ("&& b(a)", ""), ("h(a, b)", ""), ("*c - a", "0"), ("*c - a", "1"), ("-", "+")})

    def test_rows(self) -> None:
        source = """#define NOTHING 0
WATCH_CALL(cuCall, (int a), (a), effect, (w, a))
WATCH_SYNC(cuSame, (void), (), nothing, (w))
GUARD(cuOther, (void))
CONF(free, "FREE", CHOICE, "auto", "auto|strict", "help, text")
"""
        call, same = "WATCH_CALL(cuCall, (int a), (a), effect, (w, a))", "WATCH_SYNC(cuSame, (void), (), nothing, (w))"
        self.assertEqual(texts(source, generate.row_changes(source)), {
            ("effect, (w, a)", "nothing, (w)"), ("WATCH_CALL", "WATCH_RETRY"), (call, ""), (same, ""), ("GUARD", "DRIVER"), ('"auto"', '"strict"'), ('"auto|strict"', '"autox|strict"'), ('"auto|strict"', '"auto|strictx"')})

    def test_all_of_the_library(self) -> None:
        """Its lines stay where they are, and a draw is the seed's."""
        every = drawn.all_mutants(ROOT, ["pool"])
        for mutant in every:
            text = (ROOT / mutant.file).read_text()
            self.assertEqual(text.count("\n"), drawn.apply(text, mutant.change).count("\n"), str(mutant))
        self.assertEqual(drawn.draw(every, 3, 20), drawn.draw(every, 3, 40)[:20])
        self.assertNotEqual(drawn.draw(every, 3, 20), drawn.draw(every, 4, 20))


class Verdicts(unittest.TestCase):
    def test_a_small_project(self) -> None:
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            top = Path(name) / "top"
            for file, text in PROJECT.items():
                (top / file).parent.mkdir(parents=True, exist_ok=True)
                (top / file).write_text(text)
            every = {f"{m.old} => {m.new}": m for m in drawn.all_mutants(top, [])}
            chosen = ["if (x > 10) => if (0)", "return x + 1; => return x - 1;", "if (x > 10) => if (x >= 10)"]
            trial = drawn.Trial(Path(name) / "work", ["unit"], False, 100, False, top=top)
            trial.nearest.limit = lambda test: 600.0  # type: ignore[method-assign]
            trial.run([every[text] for text in chosen], 1)
            trial.nearest.limit = lambda test: 1.0  # type: ignore[method-assign]
            trial.run([every["n -= 1; => ;"]], 1)
            verdicts = [(verdict, by) for verdict, by in trial.results.values()]
        self.assertEqual(verdicts[:2] + verdicts[3:],
                         [("nearest", "pool"), ("lived", "no test executes it"), ("nearest", "pool, which hangs")])
        self.assertIn(verdicts[2][0], ("equivalent", "lived"))  # compilers differ in whether they see it
        self.assertIn("| pool | 4 | 0 |", trial.table())


class Written(unittest.TestCase):
    def test_code_is_found_in_any_file(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            top = Path(name)
            for folder, function in ("pool", "one"), ("shim", "two"):
                (top / folder).mkdir()
                (top / folder / "a.c").write_text(f"int {function}(void)\n{{\n    call(1,\n         2);\n}}\n")
            sources = written.Sources(top)
            edit = ("call(1, 2);", ";", "two")
            self.assertEqual(list(sources.mutate(Mutant("", [], [edit]))), ["shim/a.c"])
            for wrong in (edit[:2], ("call(3)", ";"), ("int one", "int one")):
                with self.assertRaises(ValueError):
                    sources.mutate(Mutant("", [], [wrong]))
