from __future__ import annotations

from tidemark_core.base.entry import NO_PRODUCER
from tidemark_core.replication.producer_ids import MARK, PREFIX_BYTES, caller_of, next_of, prefix_of


def test_l25b_an_id_names_the_caller_whose_prefix_it_has() -> None:
    one, other = prefix_of("client/one"), prefix_of("client/other")

    assert PREFIX_BYTES == len(one) == len(other)
    assert one != other != prefix_of("admin/other")
    assert one == caller_of(one + b"12345678")


def test_l25b_an_id_without_the_mark_has_no_caller() -> None:
    assert b"" == prefix_of("")
    assert [b"", b""] == [caller_of(each) for each in (NO_PRODUCER, MARK[:3] + b"x" * 13)]


def test_l25b_a_prefix_is_what_it_was_in_the_log_of_yesterday() -> None:
    assert "f5746df5d5cf9708" == prefix_of("client/shop").hex()


def test_l25b_the_next_id_is_another_one_of_the_same_caller_or_of_the_caller_that_a_node_names() -> None:
    last = prefix_of("client/one") + b"\xff" * 8
    assert next_of(last) == prefix_of("client/one") + bytes(8)
    assert next_of(next_of(last)) == prefix_of("client/one") + bytes(7) + b"\x01"
    assert next_of(last, prefix_of("client/two")) == prefix_of("client/two") + bytes(8)
