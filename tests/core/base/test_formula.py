"""The quorum formula: arithmetic that rounds down, bounded, refused with one type of error whatever the text is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.formula import (
    FORMULA_LENGTH_MAX,
    FORMULA_PATTERN,
    NESTING_MAX,
    InvalidFormula,
    evaluate,
    quorum_asked,
    quorum_in_force,
)
from tidemark_core.base.quorum import majority

MEMBERS = st.integers(1, 9)


@pytest.mark.parametrize(
    ("formula", "members", "expected"),
    [
        ("N/2+1", 3, 2),
        ("N/2+1", 4, 3),
        ("N", 5, 5),
        ("N-1", 5, 4),
        ("(N+2)*2/3", 7, 6),
        ("10-2-3", 1, 5),
        ("24/4/2", 1, 3),
        ("2+3*4", 1, 14),
        (" N / 2 + 1 ", 5, 3),
        ("1-N", 3, -2),
        ("(1-N)/2", 4, -2),
        ("7/(N-5)", 3, -4),
        ("min(N,3)", 5, 3),
        ("min(N,3)", 2, 2),
        ("max(N-1, 3)", 3, 3),
        ("max(N-1, 3)", 7, 6),
        ("max(1,2,N,4)", 3, 4),
        ("min ( N-1 , max(2, N/2+1), 9 ) + 1", 5, 4),
        ("min(max(N,1),2)*2", 3, 4),
    ],
)
def test_formula_is_arithmetic_that_rounds_down(formula: str, members: int, expected: int) -> None:
    assert expected == evaluate(formula, members)
    assert re.search(FORMULA_PATTERN, formula), "the API server would refuse it"


@pytest.mark.parametrize(
    ("formula", "fact"),
    [
        ("", "not the end"),
        (" ", "not the end"),
        ("N N", "unexpected 'N'"),
        ("1+", "not the end"),
        ("(N", "')' is expected, not the end"),
        ("N)", "unexpected ')'"),
        ("(1 2)", "')' is expected, not '2'"),
        ("()", "not ')'"),
        ("N**2", "not '*'"),
        ("N//2", "not '/'"),
        ("-1", "not '-'"),
        ("+N", "not '+'"),
        ("M", "unexpected 'M'"),
        ("n", "unexpected 'n'"),
        ("N%2", "unexpected '%'"),
        ("N\t", "unexpected '\\t'"),
        ("N\n", "unexpected '\\n'"),
        ("1.5", "unexpected '.'"),
        ("٣", "unexpected"),
        ("²", "unexpected"),
        ("\ud800", "unexpected"),
        ("N\x00", "unexpected"),
        ("12345", "at most 4 digits"),
        ("1" * 64, "at most 4 digits"),
        ("N" * 65, "at most 64 characters"),
        ("N+" * 5000 + "N", "at most 64 characters"),
        ("N/0", "division by zero where N is 3"),
        ("1/(N-3)", "division by zero where N is 3"),
        ("1/min(0,1)", "division by zero"),
        ("min", "'(' is expected, not the end"),
        ("min N", "'(' is expected, not 'N'"),
        ("min()", "not ')'"),
        ("min(N)", "min takes two or more terms"),
        ("max(N)", "max takes two or more terms"),
        ("min(1,)", "not ')'"),
        ("min(,1)", "not ','"),
        ("min(1,2", "')' is expected, not the end"),
        ("min(1 2)", "')' is expected, not '2'"),
        ("mi(1,2)", "unexpected 'm'"),
        ("m in(1,2)", "unexpected 'm'"),
        ("minmax(1,2)", "'(' is expected, not 'max'"),
        ("1,2", "unexpected ','"),
        ("(1,2)", "a comma stands in no min and no max"),
        ("N.__class__", "unexpected '.'"),
        ("__import__('os')", "unexpected '_'"),
        ("(" * 64, "nest at most 16 deep"),
        ("min(" * 16, "not the end"),
        ("min(1," * 10 + "1", "')' is expected"),
    ],
)
def test_what_is_no_formula_is_refused_and_the_refusal_says_why(formula: str, fact: str) -> None:
    with pytest.raises(InvalidFormula, match=re.escape(fact)):
        evaluate(formula, 3)


def nested(depth: int) -> str:
    return "(" * depth + "N" + ")" * depth


def test_nesting_and_length_are_bounded_and_the_bounds_themselves_are_allowed() -> None:
    assert 3 == evaluate(nested(NESTING_MAX), 3)
    with pytest.raises(InvalidFormula, match="nest"):
        evaluate(nested(NESTING_MAX + 1), 3)
    assert 6 == evaluate(f"{nested(12)}+{nested(12)}", 3), "what was closed nests no deeper"
    assert 3 == evaluate("N" + " " * (FORMULA_LENGTH_MAX - 1), 3)
    with pytest.raises(InvalidFormula, match="characters"):
        evaluate("N" + " " * FORMULA_LENGTH_MAX, 3)


ALPHABET = st.sampled_from(["N", "0", "1", "2", "9", "42", "+", "-", "*", "/", "(", ")", ",", " ", "min", "max", "min(",
                            "max(", "min(N,", "a", "\n", "٣"])
HOSTILE = st.one_of(
    st.text(max_size=80), st.lists(ALPHABET, max_size=40).map("".join), st.integers(0, 5000).map(nested),
    st.text(alphabet=st.characters(), max_size=8),
)


@given(formula=HOSTILE, members=MEMBERS)
def test_no_text_raises_anything_but_invalid_formula(formula: str, members: int) -> None:
    try:
        value = evaluate(formula, members)
    except InvalidFormula as error:
        assert len(str(error)) < 500
    else:
        assert isinstance(value, int)
        assert re.fullmatch(FORMULA_PATTERN, formula), "the API server would refuse what is accepted here"


def terms(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    """A formula and the same in Python's own words."""
    two = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(two, st.sampled_from("+-*")).map(
            lambda drawn: tuple(f"({drawn[0][0][i]}){drawn[1]}({drawn[0][1][i]})" for i in (0, 1))),
        two.map(lambda drawn: (f"({drawn[0][0]})/({drawn[1][0]})", f"({drawn[0][1]})//({drawn[1][1]})")),
        st.tuples(st.sampled_from(["min", "max"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda drawn: tuple(f"{drawn[0]}({','.join(one[i] for one in drawn[1])})" for i in (0, 1))),
    )


FORMULAS = st.recursive(
    st.one_of(st.just("N"), st.integers(0, 20).map(str)).map(lambda text: (text, text)), terms, max_leaves=6)


@given(formula=FORMULAS, members=MEMBERS)
def test_a_formula_gives_what_python_gives(formula: tuple[str, str], members: int) -> None:
    ours, pythons = formula
    if len(ours) > FORMULA_LENGTH_MAX:
        with pytest.raises(InvalidFormula, match="characters"):
            evaluate(ours, members)
        return
    try:
        expected = eval(pythons, {"__builtins__": {}, "N": members, "min": min, "max": max})
    except ZeroDivisionError:
        with pytest.raises(InvalidFormula, match="division by zero"):
            evaluate(ours, members)
        return
    assert expected == evaluate(ours, members)


def test_quorum_never_falls_below_a_majority() -> None:
    assert [2, 2, 2, 2, 3, 3] == [quorum_in_force(quorum, 3) for quorum in (None, "", "1", 1, 3, "N")]
    assert [3, 3, 4] == [quorum_in_force(quorum, 5) for quorum in (None, "N-4", "N-1")]


def test_an_ensemble_smaller_than_the_quorum_confirms_with_all_of_its_members() -> None:
    assert [3, 4, 5, 5] == [quorum_in_force(5, members) for members in (3, 4, 5, 6)]
    assert [5, 5, 5, 5] == [quorum_asked(5, members) for members in (3, 4, 5, 6)]


@given(formula=FORMULAS, members=MEMBERS)
def test_a_quorum_lies_between_a_majority_and_all_and_any_two_overlap(
    formula: tuple[str, str], members: int
) -> None:
    try:
        quorum = quorum_in_force(formula[0], members)
    except InvalidFormula:
        return
    assert majority(members) <= quorum <= members
    assert 2 * quorum > members
