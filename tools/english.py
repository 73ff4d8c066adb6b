"""Counts words and openings that the project avoids, in comments, docstrings and pages; the counts may only fall.

    python tools/english.py            # print each finding
    python tools/english.py --lower    # lower the committed counts in tests/house/english.json; never raises one

The words hide the subject of a sentence or are no term of the field; CONTRIBUTING.md says what to write instead.
Stays out: generated files, code, and strings that are not docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
COUNTS = REPOSITORY / "tests" / "house" / "english.json"

AVOIDED = {
    "nobody": r"\bnobody\b",
    "somebody": r"\bsomebody\b",
    "whoever": r"\bwhoever\b",
    "anew": r"\banew\b",
    "is told": r"\b(?:am|is|are|was|were|be|been|being)\s+(?:(?:not|never|also|only|then)\s+)?told\b",
    "to be had": r"\bto\s+be\s+had\b",
    "let go of": r"\blet(?:s|ting)?\s+go\b",
    "looked at": r"\blooked\s+at\b",
}
"""Name and pattern; letters of either case count."""

OPENING = "opens with what or who"
BEGIN = re.compile(r"(?:(?<=[.!?])\s+|\A|\n[ \t]*(?:[-*]|\d+\.)[ \t]+)[ \t*_|>-]*(?=\w)")
END = re.compile(r"[.!?](?=\s|$|[*_|)\]])|\n[ \t]*(?:[-*]|\d+\.)[ \t]")
FREE_RELATIVE = re.compile(r"(?:what|who|whom|whose|whatever|whichever)\b", re.IGNORECASE)

GENERATED = re.compile(
    r"_pb2(?:_grpc)?\.pyi?$|^charts/rendered/|^docs/reference/|^bench/RESULTS\.md$|^tests/assets/|^CHANGELOG\.md$"
)
"""Files that a program writes, and the changelog, which is history."""


class Finding(NamedTuple):
    """One word or opening to avoid."""

    path: str
    line: int
    word: str
    text: str


class Prose(NamedTuple):
    """A piece of text in a file and the line on which it begins."""

    line: int
    text: str


def tracked() -> list[str]:
    """Return the files of the project, relative to it; in an export without git, all that are not hidden."""
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        paths = (path.relative_to(REPOSITORY) for path in REPOSITORY.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    listed = subprocess.run(  # noqa: S603 - a fixed command
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True,
    )
    return sorted({name for name in listed.stdout.split("\0") if name})


def prose_of_python(source: str) -> Iterator[Prose]:
    """Yield each docstring, and each run of comment lines as one text."""
    for statement in statements(ast.parse(source)):   # a string that stands alone documents what is above it
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            value = statement.value.value
            if isinstance(value, str):
                yield Prose(statement.lineno, value)
    run: list[str] = []
    first = last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, alone = token.start[0], not token.line[: token.start[1]].strip()
        if not (alone and run and line == last + 1):
            if run:
                yield Prose(first, "\n".join(run))
            run, first = [], line
        run.append(token.string.lstrip("#: ").rstrip())
        last = line if alone else -1
    if run:
        yield Prose(first, "\n".join(run))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield each statement below a node, however deep; expressions hold none."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        inside = getattr(node, name, None)
        for child in inside if isinstance(inside, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def prose_of_proto(source: str) -> Iterator[Prose]:
    """Yield each run of comment lines."""
    run: list[str] = []
    first = -1
    for number, line in enumerate([*source.splitlines(), ""], 1):
        _, mark, comment = line.partition("//")
        if mark:
            if not run:
                first = number
            run.append(comment.strip())
        elif run:
            yield Prose(first, "\n".join(run))
            run = []


def prose_of_page(source: str) -> Iterator[Prose]:
    """Yield a Markdown page without code, link targets and anchors; lines keep their numbers."""
    source = re.sub(r"(?ms)^ *```.*?^ *```", lambda match: "\n" * match[0].count("\n"), source)
    source = re.sub(r"`[^`\n]*`", "code", source)
    source = re.sub(r"\]\([^)\n]*\)", "]", source)
    yield Prose(1, re.sub(r"<[^>\n]*>", "", source))


READERS = {".py": prose_of_python, ".proto": prose_of_proto, ".md": prose_of_page}


def findings_in(path: str, source: str) -> Iterator[Finding]:
    """Yield what the text of a file has to avoid."""
    for prose in READERS[Path(path).suffix](source):
        lines = prose.text.splitlines()
        for word, pattern in AVOIDED.items():
            for match in re.finditer(pattern, prose.text, re.IGNORECASE):
                row = prose.text.count("\n", 0, match.start())
                yield Finding(path, prose.line + row, word, lines[row].strip())
        for start, sentence in sentences(prose.text):
            if FREE_RELATIVE.match(sentence) and not sentence.endswith("?"):
                row = prose.text.count("\n", 0, start)
                yield Finding(path, prose.line + row, OPENING, lines[row].strip())


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with where it begins; headings and table rows count when they end like one."""
    for paragraph in re.finditer(r"(?:[^\n]+\n?)+", text):
        block, offset = paragraph[0], paragraph.start()
        for part in BEGIN.finditer(block):
            end = END.search(block, part.end())
            if end is not None:
                yield offset + part.end(), block[part.end():end.end()].rstrip("*_|)] \t\n")


def folder_of(path: str) -> str:
    """Return under which name a file is counted: its first folder, `docs/protocols`, or a page at the root."""
    if path.startswith("docs/protocols/"):
        return "docs/protocols"
    return path.partition("/")[0]


def findings(below: Sequence[str] = ()) -> list[Finding]:
    """Return everything to avoid in the repository, or below these folders only."""
    found: list[Finding] = []
    for path in tracked():
        if below and not path.startswith(tuple(below)):
            continue
        if Path(path).suffix in READERS and not GENERATED.search(path) and (REPOSITORY / path).is_file():
            found += findings_in(path, (REPOSITORY / path).read_text(encoding="utf-8"))
    return found


def count(found: list[Finding]) -> dict[str, dict[str, int]]:
    """Return how often each word stands in each folder; a folder without any is left out."""
    counts: dict[str, Counter[str]] = {}
    for finding in found:
        counts.setdefault(folder_of(finding.path), Counter())[finding.word] += 1
    return {folder: dict(sorted(words.items())) for folder, words in sorted(counts.items())}


def lowered(
    committed: dict[str, dict[str, int]], counted: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the smaller of both counts for each folder and word; none is ever raised or added."""
    smaller = {
        folder: {word: min(number, counted.get(folder, {}).get(word, 0)) for word, number in words.items()}
        for folder, words in committed.items()
    }
    return {
        folder: kept for folder, words in smaller.items() if (kept := {word: n for word, n in words.items() if n})
    }


def risen(committed: dict[str, dict[str, int]], counted: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    """Return each folder and word whose count is above the committed one."""
    return [
        (folder, word) for folder, words in counted.items() for word, number in words.items()
        if number > committed.get(folder, {}).get(word, 0)
    ]


def committed_counts() -> dict[str, dict[str, int]]:
    """Read the committed counts."""
    counts: dict[str, dict[str, int]] = json.loads(COUNTS.read_text(encoding="utf-8"))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Count words and openings that the project avoids.")
    parser.add_argument("--lower", action="store_true", help="lower the committed counts to those of today")
    parser.add_argument("folder", nargs="*", help="print findings below these folders only")
    asked = parser.parse_args()
    if asked.lower:
        counts = lowered(committed_counts(), count(findings()))
        COUNTS.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        return 0
    for finding in findings(asked.folder):
        print(f"{finding.path}:{finding.line}: {finding.word}: {finding.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
