# SPDX-License-Identifier: Apache-2.0
"""Makes mutants of C by machine: each is one small change of one place in a function, a table of data or a macro's body.

Why not PyPI's universalmutator: its rules are regular expressions for single lines. Of 150 that it drew from pool/split_merge.c
with seed 1, 91 did not compile; it changes comments, text and pointers' stars, cannot delete a statement of two lines, and
brings eleven packages. These read tokens, and nine of ten compile.

No targets: comments, text, preprocessor conditions, static asserts, prototypes, types, sizes of arrays, memory orders.
"""
from __future__ import annotations

import re
from typing import Iterator, NamedTuple

from tokens import Token, define_end, partners, read

RELATIONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
BINARY = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<"}
ASSIGNING = {"+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "*=": "/=", "/=": "*="}
KEYWORDS = {"if", "else", "for", "while", "do", "switch", "case", "default", "return", "break", "continue", "goto", "sizeof",
            "const", "static", "struct", "enum", "union", "unsigned", "signed", "int", "char", "long", "short", "bool", "void", "double",
            "float", "typedef", "extern", "volatile", "register", "inline", "_Thread_local", "_Atomic", "_Static_assert"}
BEGINS = {";", "{", "}", ":"}
BOUNDS = {",", ";", "?", ":", "=", "return", "&&", "||", "+=", "-=", "|="}


class Change(NamedTuple):
    start: int  # in the file's text
    end: int
    new: str
    kind: str


class Reader:
    """One text's tokens, and for each whether it is code."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, read(text)
        self.pairs = partners(self.tokens)
        self.code = [False] * len(self.tokens)
        self.data = [False] * len(self.tokens)  # in the braces of a table
        self._mark()

    def _mark(self) -> None:
        tokens, depth_end, i = self.tokens, -1, 0
        while i < len(tokens):
            token = tokens[i]
            if token.kind == "directive":
                end = define_end(self.text, token)
                while i + 1 < len(tokens) and tokens[i + 1].end <= end:
                    i += 1
                    self.code[i] = True
            elif token.text == "{" and i in self.pairs and i:
                is_function, is_table = tokens[i - 1].text == ")", tokens[i - 1].text == "="
                for j in range(i, self.pairs[i]) if is_function or is_table else ():
                    self.code[j] = tokens[j].kind != "directive"
                    self.data[j] = is_table
                i = self.pairs[i]
            i += 1
        for i, token in enumerate(tokens):  # static asserts
            if token.text in ("_Static_assert", "static_assert") and i + 1 in self.pairs:
                for j in range(i, self.pairs[i + 1] + 1):
                    self.code[j] = False

    def word(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def begins(self, i: int) -> bool:
        """Does a statement begin here?"""
        before = self.word(i - 1)
        if before in BEGINS or before in ("else", "do"):
            return before != ":" or self.is_label(i - 1)
        return before == ")" and self.word(self.pairs.get(i - 1, 0) - 1) in ("if", "for", "while", "switch")

    def is_label(self, colon: int) -> bool:
        return self.word(colon - 1) == "default" or self.word(colon - 2) == "case"

    def statement_end(self, i: int) -> int:
        """The index of the semicolon that ends the statement; -1: it has a block, or none."""
        while i < len(self.tokens) and self.code[i]:
            if self.word(i) == ";":
                return i
            if self.word(i) in ("{", "}", ")") or self.tokens[i].kind == "directive":
                return -1
            i = self.pairs[i] + 1 if self.word(i) in ("(", "[") and i in self.pairs else i + 1
        return -1

    def operand(self, i: int, step: int, bounds: "set[str]") -> "tuple[int, int]":
        """The tokens of the operand before (step -1) or behind (1) the operator at i, as first and last index."""
        opening, closing = ("([{", ")]}") if step > 0 else (")]}", "([{")
        at = i + step
        while 0 <= at < len(self.tokens) and self.code[at]:
            word = self.word(at)
            if word in closing or word in bounds or self.tokens[at].kind == "directive":
                break
            at = self.pairs[at] + step if word in opening and at in self.pairs else at + step
        return (i + 1, at - 1) if step > 0 else (at + 1, i - 1)

    def span(self, first: int, last: int, new: str, kind: str) -> Change:
        return Change(self.tokens[first].start, self.tokens[last].end, new, kind)


def _is_binary(reader: Reader, i: int) -> bool:
    token, before = reader.tokens[i], reader.tokens[i - 1]
    apart = reader.text[token.start - 1].isspace() and reader.text[token.end:token.end + 1].isspace()
    return apart and (before.kind in ("name", "number") and before.text not in KEYWORDS or before.text in (")", "]"))


def _numbers(reader: Reader, i: int) -> "Iterator[Change]":
    token = reader.tokens[i]
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]+|[1-9]\d*|0)([uUlL]*)", token.text)
    if not match or (reader.word(i - 1) == "[" and reader.word(i + 1) == "]"):
        return
    value, suffix = int(match.group(1), 0), match.group(2)
    for new in ((1,) if value == 0 else (0, 2) if value == 1 else (value + 1, value - 1)):
        yield reader.span(i, i, f"{new}{suffix}", "number")


def _statements(reader: Reader, i: int) -> "Iterator[Change]":
    first, second = reader.word(i), reader.word(i + 1)
    if first == "if" or first == "while":
        close = reader.pairs.get(i + 1)
        if close and not (first == "while" and reader.word(close + 1) == ";"):
            for new in ("0", "1") if first == "if" else ("0",):
                yield reader.span(i + 2, close - 1, new, "condition")
    elif first == "else" and second != "if":
        yield reader.span(i, i, "else if (0)", "condition")
    elif first == "return":
        end = reader.statement_end(i)
        if end > i + 2:
            yield reader.span(i + 1, end - 1, "0", "return")
            yield reader.span(i + 1, end - 1, "1", "return")
    elif first in ("break", "continue") and second == ";":
        yield reader.span(i, i, "", "statement")
    elif reader.begins(i) and first not in KEYWORDS and (
            first in ("*", "++", "--") or reader.tokens[i].kind == "name" and (
                second in ("(", "[", "->", ".", "++", "--", "=") or second in ASSIGNING)):
        end = reader.statement_end(i)
        if end > 0:
            yield reader.span(i, end - 1, "", "statement")


def _operators(reader: Reader, i: int) -> "Iterator[Change]":
    word = reader.word(i)
    if word in ("&&", "||"):
        left, right = reader.operand(i, -1, BOUNDS), reader.operand(i, 1, BOUNDS)
        yield reader.span(i, i, "||" if word == "&&" else "&&", "logic")
        if left[0] <= left[1] and right[0] <= right[1]:
            yield reader.span(left[0], i, "", "operand")
            yield reader.span(i, right[1], "", "operand")
    elif word == "?":
        first, last = reader.operand(i, -1, BOUNDS - {"&&", "||"})
        if first <= last and reader.word(first) != "case":
            yield reader.span(first, last, "0", "condition")
            yield reader.span(first, last, "1", "condition")
    elif word in RELATIONS and _is_binary(reader, i):
        for new in RELATIONS[word]:
            yield reader.span(i, i, new, "relation")
    elif word in BINARY and _is_binary(reader, i):
        yield reader.span(i, i, BINARY[word], "arithmetic")
    elif word in ASSIGNING:
        yield reader.span(i, i, ASSIGNING[word], "arithmetic")
    elif word == "!":
        yield reader.span(i, i, "", "negation")
    elif word in ("true", "false"):
        yield reader.span(i, i, "false" if word == "true" else "true", "number")


def changes(text: str) -> "list[Change]":
    """All changes of a C source, in its order."""
    reader = Reader(text)
    found: "list[Change]" = []
    for i, token in enumerate(reader.tokens):
        if not reader.code[i] or token.kind == "directive":
            continue
        if token.kind == "number":
            found += _numbers(reader, i)
        elif not reader.data[i]:
            found += _statements(reader, i)
            found += _operators(reader, i)
    return found


def _arguments(reader: Reader, opening: int) -> "list[tuple[int, int]]":
    found, first, i = [], opening + 1, opening + 1
    while i <= reader.pairs[opening]:
        if i == reader.pairs[opening] or reader.word(i) == ",":
            found.append((first, i - 1))
            first = i + 1
        i = reader.pairs[i] + 1 if reader.word(i) in ("(", "[", "{") else i + 1
    return found


# Another word of a row; another kind of row that still builds; kinds of rows that may be left out and still build.
_SWAPS = {"MINE": "ALL", "ALL": "MINE", "TALK": "SILENT", "SILENT": "TALK", "FINALIZE": "TALK", "CLOSE": "SILENT"}
_KINDS = {"GUARD": "DRIVER", "CAPTURE_BEGIN": "CAPTURE_END", "CAPTURE_END": "CAPTURE_BEGIN", "RUNTIME_CAPTURE_BEGIN": "RUNTIME_CAPTURE_END",
          "RUNTIME_CAPTURE_END": "RUNTIME_CAPTURE_BEGIN", "WATCH_CALL": "WATCH_RETRY", "WATCH_STREAM": "WATCH_RETRY_STREAM",
          "WATCH_RETRY": "WATCH_CALL", "WATCH_RETRY_STREAM": "WATCH_STREAM", "WATCH_RETRY_ON_DEVICE": "WATCH_CALL",
          "WATCH_RETRY_OUTSIDE": "WATCH_RETRY"}
_REMOVED = {"RETRY", "RETRY_MEMORY", "WATCH_CALL", "WATCH_STREAM", "WATCH_SYNC", "WATCH_RETRY", "WATCH_RETRY_STREAM", "WATCH_RETRY_ON_DEVICE",
            "WATCH_RETRY_OUTSIDE", "NCCL_OP", "NCCL_MAKE", "NCCL_USE", "NCCL_END"}


def _row(reader: Reader, i: int) -> "Iterator[Change]":
    kind, arguments = reader.word(i), _arguments(reader, i + 1)
    if kind.startswith("WATCH_") and reader.word(arguments[3][0]) != "nothing":
        yield reader.span(arguments[3][0], arguments[4][1], "nothing, (w)", "row")
    if kind in _KINDS:
        yield reader.span(i, i, _KINDS[kind], "row")
    for first, last in arguments[2:]:
        for j in range(first, last + 1):
            if reader.word(j) in _SWAPS and reader.tokens[j].kind == "name":
                yield reader.span(j, j, _SWAPS[reader.word(j)], "row")
    if kind == "NCCL_OP":
        for a, b in ((4, 6), (6, 4), (5, 7), (7, 5)):
            new = reader.text[reader.tokens[arguments[b][0]].start:reader.tokens[arguments[b][1]].end]
            if new != reader.text[reader.tokens[arguments[a][0]].start:reader.tokens[arguments[a][1]].end]:
                yield reader.span(*arguments[a], new, "row")
    if kind in _REMOVED:
        yield reader.span(i, reader.pairs[i + 1], "", "row")  # the program's own call is not caught
    if kind == "CONF" and len(arguments) >= 5:
        yield from _setting(reader, arguments)


def _setting(reader: Reader, arguments: "list[tuple[int, int]]") -> "Iterator[Change]":
    default, choices = (reader.word(arguments[n][0]).strip('"') for n in (3, 4))
    options = choices.split("|") if "|" in choices else []
    if default in options:
        yield reader.span(*arguments[3], f'"{options[(options.index(default) + 1) % len(options)]}"', "setting")
        for option in options:
            yield reader.span(*arguments[4], '"' + "|".join(o + "x" * (o == option) for o in options) + '"', "setting")
    elif default.isdigit():
        yield reader.span(*arguments[3], f'"{int(default) + 1}"', "setting")


def row_changes(text: str) -> "list[Change]":
    """All changes of a list's rows: an effect that is missing, a flag that is another, a row that is not there."""
    reader = Reader(text)
    found: "list[Change]" = []
    for i, token in enumerate(reader.tokens):
        starts_line = token.start == 0 or text[token.start - 1] == "\n"
        if token.kind == "name" and starts_line and not reader.code[i] and i + 1 in reader.pairs and reader.word(i + 1) == "(":
            found += _row(reader, i)
    return found
