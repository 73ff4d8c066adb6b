"""Random predicates in Spark: with push-down on and off they show what Spark's own filter shows, nulls included."""

from __future__ import annotations

import random

import pytest
import tidemark.sync
from pyspark.sql import DataFrame, SparkSession
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread

from .groups import add_things
from .log.stored import batch_of

SETTING = "spark.sql.python.filterPushdown.enabled"
KEYS = [b"", *(bytes([97 + first]) + bytes([97 + second]) * (second % 3) for first in range(3) for second in range(3))]
PREDICATES = 20     # each pins the documents three times, and a shard has 64 pins


def predicate(dice: random.Random, columns: dict[str, list[str]], depth: int = 0) -> str:
    """Return a predicate over columns, each with literals of its type."""
    if depth < 2 and dice.random() < 0.6:
        joined = dice.choice([" and ", " and ", " or "])
        return "(" + joined.join(predicate(dice, columns, depth + 1) for _ in range(2)) + ")"
    column, literals = dice.choice(list(columns.items()))
    one, two, three = dice.choices(literals, k=3)
    found = dice.choice([
        f"{column} {dice.choice(['=', '<', '<=', '>', '>=', '<=>', '!='])} {one}",
        f"{column} in ({one}, {two}, {three})", f"{column} between {one} and {two}",
        f"{column} is {dice.choice(['', 'not '])}null",
    ])
    return f"not ({found})" if dice.random() < 0.2 else found


@pytest.mark.parametrize("mode", ["log", "documents"])
def test_p3_random_predicates_show_what_spark_shows(spark: SparkSession, fake: FakeInAThread, mode: str) -> None:
    add_things(fake)
    for shard in (0, 1):
        fake.call(fake.added(shard, batch_of([
            Record(b"%d" % number, KEYS[number % len(KEYS)] if number % 3 else None, number) for number in range(12)])))
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many([(key or b"\0", key) for key in KEYS])
    group = "orders" if mode == "log" else "things"

    def read(pushes: bool = False) -> DataFrame:
        return spark.read.format("tidemark").options(
            endpoints=fake.address, group=group, mode=mode, pushDown=pushes).load()

    frame = read()
    keys = [f"X'{key.hex()}'" for key in (*KEYS, b"zz", b"aab")]
    numbers = [str(number) for number in range(-1, 13)]
    columns = {"key": keys, "value": keys}
    columns |= {"shard": ["0", "1", "2"], "offset": numbers} if mode == "log" else {"seqno": numbers}
    held = spark.createDataFrame(frame.collect(), frame.schema).cache()

    def shown(source: DataFrame, where: str) -> list[object]:
        return sorted(source.where(where).collect(), key=repr)

    dice = random.Random(mode)
    for _ in range(PREDICATES):
        where = predicate(dice, columns)
        expected = shown(held, where)
        for pushes in (True, False):
            spark.conf.set(SETTING, pushes)
            try:
                assert shown(read(pushes), where) == expected, f"push-down {pushes}: {where}"
                if pushes:
                    assert shown(frame, where) == expected, f"a DataFrame that is used again: {where}"
            finally:
                spark.conf.unset(SETTING)
