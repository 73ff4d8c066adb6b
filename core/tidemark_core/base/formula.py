"""The synchro quorum as a number, or as a formula over N, the number of members of the ensemble in force.

    sum     = product {("+" | "-") product}
    product = atom {("*" | "/") atom}
    atom    = number | "N" | "(" sum ")" | ("min" | "max") "(" sum "," sum {"," sum} ")"

Division rounds down.  The text is parsed, never evaluated as code, and whatever it is, the one thing raised is
InvalidFormula.  Whatever a formula gives, a majority is the least that counts and every member is the most.
Stays out: who acknowledged what, and which formulas a log group may have (`resources`).
"""

from __future__ import annotations

from .quorum import majority

FORMULA_PATTERN = r"^([0-9N+*/(), -]|min|max)+$"
"""What the text of every formula matches; most of what matches it is no formula."""

FORMULA_LENGTH_MAX = 64
NESTING_MAX = 16
DIGITS_MAX = 4

_WORDS = ("min", "max", "N", "+", "-", "*", "/", "(", ")", ",")
_DIGITS = "0123456789"


class InvalidFormula(ValueError):
    """The text is not a formula, or divides by zero."""


def quorum_in_force(quorum: int | str | None, members: int) -> int:
    """Return how many of `members` must hold an entry before it is confirmed.

    Never less than a majority (None and an empty text ask for no more), never more than there are: while an ensemble
    is smaller than the quorum that was asked for, all of it has to agree.  Raises InvalidFormula.
    """
    return min(members, quorum_asked(quorum, members))


def quorum_asked(quorum: int | str | None, members: int) -> int:
    """Return the quorum before it is cut to `members`; at least a majority.  Raises InvalidFormula."""
    if quorum is None or quorum == "":
        return majority(members)
    return max(majority(members), quorum if isinstance(quorum, int) else evaluate(quorum, members))


def evaluate(formula: str, members: int) -> int:
    """Return the value of `formula` for N = `members`; it may be negative.  Raises InvalidFormula."""
    if len(formula) > FORMULA_LENGTH_MAX:
        raise InvalidFormula(f"a formula has at most {FORMULA_LENGTH_MAX} characters")
    parser = _Parser(_tokens(formula), members)
    value = parser.sum()
    parser.end()
    return value


def _tokens(formula: str) -> list[str]:
    tokens = []
    position = 0
    while position < len(formula):
        if formula[position] == " ":
            position += 1
            continue
        token = _number(formula, position) or next(
            (word for word in _WORDS if formula.startswith(word, position)), "")
        if not token:
            raise InvalidFormula(f"unexpected {formula[position]!r} in formula {formula!r}")
        tokens.append(token)
        position += len(token)
    return tokens


def _number(formula: str, start: int) -> str:
    """Return the digits from `start` on, an empty text when there are none."""
    end = start
    while end < len(formula) and formula[end] in _DIGITS:
        end += 1
    if end - start > DIGITS_MAX:
        raise InvalidFormula(f"a number has at most {DIGITS_MAX} digits, {formula[start:end]} has more")
    return formula[start:end]


class _Parser:
    """Recursive descent; its depth is bounded by NESTING_MAX."""

    def __init__(self, tokens: list[str], members: int) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._members = members

    def sum(self) -> int:
        value = self._product()
        while operator := self._accept("+", "-"):
            operand = self._product()
            value = value + operand if operator == "+" else value - operand
        return value

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise InvalidFormula(f"unexpected {self._shown()} in a formula that could end before it")

    def _product(self) -> int:
        value = self._atom()
        while operator := self._accept("*", "/"):
            operand = self._atom()
            if operator == "/" and operand == 0:
                raise InvalidFormula(f"division by zero where N is {self._members}")
            value = value * operand if operator == "*" else value // operand
        return value

    def _atom(self) -> int:
        if function := self._accept("min", "max"):
            terms = self._terms()
            if len(terms) < 2:
                raise InvalidFormula(f"{function} takes two or more terms")
            return min(terms) if function == "min" else max(terms)
        if self._tokens[self._next : self._next + 1] == ["("]:
            terms = self._terms()
            if len(terms) > 1:
                raise InvalidFormula("a comma stands in no min and no max")
            return terms[0]
        if self._accept("N"):
            return self._members
        if self._next < len(self._tokens) and self._tokens[self._next].isdigit():
            self._next += 1
            return int(self._tokens[self._next - 1])
        raise InvalidFormula(f"a number, N, min, max or '(' is expected, not {self._shown()}")

    def _terms(self) -> list[int]:
        """Read what stands between two parentheses."""
        self._require("(")
        if self._depth == NESTING_MAX:
            raise InvalidFormula(f"parentheses nest at most {NESTING_MAX} deep")
        self._depth += 1
        terms = [self.sum()]
        while self._accept(","):
            terms.append(self.sum())
        self._depth -= 1
        self._require(")")
        return terms

    def _accept(self, *wanted: str) -> str | None:
        if self._next < len(self._tokens) and self._tokens[self._next] in wanted:
            self._next += 1
            return self._tokens[self._next - 1]
        return None

    def _require(self, wanted: str) -> None:
        if self._accept(wanted) is None:
            raise InvalidFormula(f"{wanted!r} is expected, not {self._shown()}")

    def _shown(self) -> str:
        return repr(self._tokens[self._next]) if self._next < len(self._tokens) else "the end"
