"""`synchroQuorum`: a number, or a formula over N, the size of the ensemble in force.

The grammar is four operators, parentheses, whole numbers and N; division rounds down.  It is parsed, never evaluated
as code.  Whatever the formula gives, a majority is the least that counts.
"""

from __future__ import annotations

import re

FORMULA_PATTERN = r"^[0-9N+*/() -]+$"
FORMULA_LENGTH_MAX = 64

_TOKEN = re.compile(r"\s*([0-9]{1,4}|[N+*/()-])\s*")


class InvalidFormula(ValueError):
    """The text is not a formula, or divides by zero."""


def quorum_in_force(quorum: int | str | None, members: int) -> int:
    """Return how many of `members` must hold a record before it is confirmed: never less than a majority."""
    majority = members // 2 + 1
    if quorum is None:
        return majority
    value = quorum if isinstance(quorum, int) else evaluate(quorum, members)
    return max(value, majority)


def evaluate(formula: str, members: int) -> int:
    """Return the value of `formula` for N = `members`.  Raises InvalidFormula."""
    if len(formula) > FORMULA_LENGTH_MAX:
        raise InvalidFormula(f"a formula has at most {FORMULA_LENGTH_MAX} characters")
    parser = _Parser(_tokens(formula), members)
    value = parser.sum()
    if parser.rest():
        raise InvalidFormula(f"unexpected {parser.rest()!r} in formula {formula!r}")
    return value


def _tokens(formula: str) -> list[str]:
    tokens = []
    position = 0
    while position < len(formula):
        match = _TOKEN.match(formula, position)
        if match is None:
            raise InvalidFormula(f"unexpected {formula[position]!r} in formula {formula!r}")
        tokens.append(match.group(1))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent; its depth is bounded by the length of a formula."""

    def __init__(self, tokens: list[str], members: int) -> None:
        self._tokens = tokens
        self._next = 0
        self._members = members

    def rest(self) -> str:
        return " ".join(self._tokens[self._next :])

    def _accept(self, *wanted: str) -> str | None:
        if self._next < len(self._tokens) and self._tokens[self._next] in wanted:
            self._next += 1
            return self._tokens[self._next - 1]
        return None

    def sum(self) -> int:
        value = self._product()
        while operator := self._accept("+", "-"):
            operand = self._product()
            value = value + operand if operator == "+" else value - operand
        return value

    def _product(self) -> int:
        value = self._atom()
        while operator := self._accept("*", "/"):
            operand = self._atom()
            if operator == "/" and operand == 0:
                raise InvalidFormula("division by zero")
            value = value * operand if operator == "*" else value // operand
        return value

    def _atom(self) -> int:
        if self._accept("("):
            value = self.sum()
            if not self._accept(")"):
                raise InvalidFormula("a parenthesis is not closed")
            return value
        if self._accept("N"):
            return self._members
        if self._next < len(self._tokens) and self._tokens[self._next].isdigit():
            self._next += 1
            return int(self._tokens[self._next - 1])
        raise InvalidFormula("a number, N or a parenthesis is missing")
