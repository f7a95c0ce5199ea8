# SPDX-License-Identifier: Apache-2.0
"""Reads C as tokens: where comments, strings, functions, brackets and macro bodies are. No preprocessor and no grammar: types are
known by how the project's sources are formatted. Used by what makes mutants and by what looks for a hand-written one's code.
"""
from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("pool", "nccl_reg", "shim")
SUFFIXES = (".c", ".h", ".def", ".S")

_TOKEN = re.compile(r"""
    (?P<comment>/\*.*?\*/|//[^\n]*)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<mark>\#\#|\#|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
""", re.X | re.S)


class Token(NamedTuple):
    kind: str  # string, name, number, mark; directive: a whole preprocessor line that holds no code
    text: str
    start: int
    end: int


class Function(NamedTuple):
    name: str
    start: int  # the first character of its head's last line
    end: int    # behind its closing brace


def sources(top: Path) -> "list[str]":
    """The library's sources, relative to top."""
    return sorted(path.relative_to(top).as_posix() for folder in FOLDERS for path in (top / folder).rglob("*")
                  if path.suffix in SUFFIXES)


def read(text: str) -> "list[Token]":
    """The tokens of text, without comments and white space. The head of a #define becomes a directive, its body tokens."""
    tokens: "list[Token]" = []
    at = 0
    while at < len(text):
        if text[at].isspace() or text.startswith("\\\n", at):
            at += 1
            continue
        match = _TOKEN.match(text, at)
        assert match
        kind, start, at = match.lastgroup or "", match.start(), match.end()
        if match.group() == "#" and not text[text.rfind("\n", 0, start) + 1:start].strip():
            define = re.compile(r"#[ \t]*define[ \t]+\w+(\([^)]*\))?").match(text, start)
            at = define.end() if define else _line_end(text, start)
            kind = "directive"
        if kind != "comment":
            tokens.append(Token(kind, text[start:at], start, at))
    return tokens


def _line_end(text: str, at: int) -> int:
    """The end of the line, and of those that continue it."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        if text[end - 1] != "\\":
            return end
        at = end + 1


def define_end(text: str, directive: Token) -> int:
    return _line_end(text, directive.start)


def partners(tokens: "list[Token]") -> "dict[int, int]":
    """Each opening bracket's index, with its closing one's, and the other way round."""
    pairs: "dict[int, int]" = {}
    stack: "list[int]" = []
    for i, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in "([{":
            stack.append(i)
        elif token.text in ")]}" and stack:
            pairs[i] = stack.pop()
            pairs[pairs[i]] = i
    return pairs


def functions(tokens: "list[Token]") -> "list[Function]":
    found: "list[Function]" = []
    pairs = partners(tokens)
    i = 0
    while i < len(tokens):
        if tokens[i].text == "{" and i in pairs:
            if i and tokens[i - 1].text == ")" and i - 1 in pairs:
                head = pairs[i - 1] - 1
                found.append(Function(tokens[head].text, tokens[head].start, tokens[pairs[i]].end))
            i = pairs[i]
        i += 1
    return found
