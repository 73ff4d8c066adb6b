"""Locations: how they are read, and how near two of them are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.delivery.location import (
    LABEL_LENGTH_MAX,
    SCOPES,
    InvalidLocation,
    Location,
    parse_location,
    priority,
)

labels = st.sampled_from(["", "a", "b"])
locations = st.builds(Location, labels, labels, labels, labels, labels)


@given(locations)
def test_s31_a_location_survives_its_way_as_text(location: Location) -> None:
    assert location == parse_location(str(location))


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("", Location()),
        (" , ,", Location()),
        ("zone=a", Location(zone="a")),
        (" rack=r1 , region=eu ", Location(region="eu", rack="r1")),
        ("region=eu,zone=a,cluster=c,row=w,rack=r", Location("eu", "a", "c", "w", "r")),
        ("zone=eu-west-1.a_2", Location(zone="eu-west-1.a_2")),
    ],
)
def test_locations_as_people_write_them(text: str, location: Location) -> None:
    assert location == parse_location(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("zone", "zone"),
        ("zone=", "zone"),
        ("=a", "'=a'"),
        ("planet=earth", "planet"),
        ("Zone=a", "Zone"),
        ("zone=a,zone=b", "zone is given twice"),
        ("zone=a;region=eu", "zone"),
        ("zone=a=b", "zone"),
        ("zone= a", "zone"),
        ("zone=a b", "zone"),
        ("zone=a\nb", "zone"),
        ("zone=\x00", "zone"),
        ("zone=ä", "zone"),
        ("zone=" + "a" * (LABEL_LENGTH_MAX + 1), "zone"),
        ("zone=a," * 10_000, "longer"),
        ("\u2028zone=a", "zone"),
    ],
)
def test_hostile_texts_are_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InvalidLocation, match="location") as refused:
        parse_location(text)

    assert named in str(refused.value)
    assert len(str(refused.value)) < 300, "what is refused is not repeated at length"


@given(st.text(max_size=200))
def test_any_text_is_a_location_or_refused(text: str) -> None:
    try:
        location = parse_location(text)
    except InvalidLocation:
        return
    assert location == parse_location(str(location))


@pytest.mark.parametrize("shared", range(6))
def test_s33_the_priority_is_the_number_of_scopes_shared(shared: int) -> None:
    here = Location("eu", "a", "c", "w", "r")
    there = Location(*here[:shared], *("other" for _ in SCOPES[shared:]))

    assert shared == priority(here, there) == priority(there, here)


def test_s33_scopes_are_nested() -> None:
    assert 0 == priority(Location("eu", "a", rack="r1"), Location("us", "a", rack="r1"))
    assert 1 == priority(Location("eu", "a"), Location("eu", "b"))


def test_s33_scopes_that_one_side_does_not_name_are_passed_over() -> None:
    assert 1 == priority(Location(zone="a"), Location(zone="a"))
    assert 2 == priority(Location(zone="a", rack="r"), Location(zone="a", rack="r"))
    assert 1 == priority(Location(zone="a"), Location("eu", "a", rack="r"))
    assert 0 == priority(Location(zone="b", rack="r"), Location("eu", "a", rack="r"))
    assert 0 == priority(Location(), Location("eu", "a"))
    assert 0 == priority(Location(), Location())


@given(locations, locations)
def test_s33_priorities_are_symmetric_and_bounded(one: Location, other: Location) -> None:
    assert 0 <= priority(one, other) == priority(other, one) <= len(SCOPES)
    assert priority(one, other) <= priority(one, one)
