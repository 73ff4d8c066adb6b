"""Options: names in any case, one typed error for each thing that is wrong, and nothing secret in any of them."""

from __future__ import annotations

import pickle

import pytest
from pyspark_tidemark.options import OPTIONS, InvalidOption, Options, Tls
from pyspark_tidemark.schema import Mode

TLS = {"tls.ca": "/tls/ca.pem", "tls.cert": "/tls/cert.pem", "tls.key": "/tls/hush.pem"}


def test_p21_names_are_read_in_any_case() -> None:
    given = {
        "ENDPOINTS": " n1:6690, n2:6690 ,", "Group": "orders", "mode": "LOG", "includeheaders": "True",
        **{name.upper(): path for name, path in TLS.items()}, "TLS.SERVERNAME": "nodes", "STARTINGOFFSETS": "earliest",
        "startingtimestamp": "2026-01-31T13:00:00.5+01:00", "EndingOffsets": "latest", "failondataloss": "FALSE",
        "MAXoffsetsPerTrigger": "90", "minOffsetspertrigger": "80", "maxtriggerdelay": "2 H", "minpartitions": "8",
        "VALUEFORMAT": "JSON", "readpreference": "Nearest", "LOCATION": "zone=a",
        "PUSHDOWN": "true", "COMMITTEDbatches": "Nightly 7"}
    assert Options.of(given) == Options(
        "orders", Mode.LOG, ("n1:6690", "n2:6690"), None, Tls("/tls/ca.pem", "/tls/cert.pem", "/tls/hush.pem", "nodes"),
        starting_offsets="earliest", starting_ms=1_769_860_800_500, fail_on_data_loss=False, offsets_max=90,
        offsets_min=80, trigger_delay_s=7200, partitions_min=8, include_headers=True,
        parses_json=True, location="zone=a", pushes_down=True, committed_of="Nightly 7")
    of_keyspace = {"KeySpace": " carts", "MODE": "keyspace", "MAXPARTITIONS": "9", "R": "1"}
    assert Options.of(of_keyspace) == Options("", Mode.KEYSPACE, keyspace="carts", partitions_max=9, r=1)
    of_changes = {"GROUP": "things", "MODE": "Changes", "PINLEASE": "6H", "BARRIER": "False", "barriertimeout": "2M"}
    assert Options.of(of_changes) == Options(
        "things", Mode.CHANGES, pin_lease_s=21_600, barrier=False, barrier_timeout_s=120)
    named = {name.lower() for name in (*given, *of_keyspace, *of_changes, "profile", "writeId")}
    assert named == {name.lower() for name in OPTIONS}


def test_a_group_is_enough() -> None:
    assert Options.of({"group": "orders"}) == Options("orders")
    assert Options.of({"group": "orders", "profile": "dev", "mode": "documents"}) == Options(
        "orders", Mode.DOCUMENTS, profile="dev")


@pytest.mark.parametrize(("name", "nearest"), [
    ("includeHeader", "did you mean 'includeHeaders'?"), ("endpoint", "did you mean 'endpoints'?"),
    ("tls.servername2", "did you mean 'tls.serverName'?"), ("GRUOP", "did you mean 'group'?"),
    ("elements", "mode=keyspace shows Strings alone"),
    ("subscribe", "use 'group'"), ("kafka.bootstrap.servers", "use 'endpoints'"), ("path", "use 'group'"),
    ("zzz", "is no option of this source; there are"),
])
def test_p21_an_unknown_option_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        Options.of({"group": "orders", name: "hush"})
    said = str(refused.value)
    assert refused.value.field == name and said.startswith(f"{name}: ")
    assert nearest in said and "hush" not in said
    assert all(known in said for known in OPTIONS)


def test_p21_nothing_secret_is_shown() -> None:
    given = {"group": "orders", **TLS}
    assert "hush" not in repr(Options.of(given))
    for wrong in ({"tls.ca": ""}, {"tls.cert": ""}, {"mode": "logs"}, {"TLS.KEY": "/tls/hush2.pem"}):
        with pytest.raises(InvalidOption) as refused:
            Options.of({**given, **wrong})
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(("given", "field", "said"), [
    ({}, "group", "is missing"),
    ({"group": "  "}, "group", "is missing"),
    ({"group": "orders", "GROUP": "others"}, "group", "is given twice"),
    ({"group": "orders", "mode": "lgo"}, "mode",
     "'lgo' is none of log, documents, changes, keyspace, did you mean 'log'?"),
    ({"group": "orders", "mode": ""}, "mode", "'' is none of log, documents, changes, keyspace"),
    ({"group": "orders", "includeHeaders": "yes"}, "includeHeaders", "'yes' is neither true nor false"),
    ({"group": "orders", "includeHeaders": "true", "mode": "changes"}, "includeHeaders", "goes with mode=log alone"),
    ({"group": "orders", "endpoints": " , "}, "endpoints", "is empty"),
    ({"group": "orders", "endpoints": "n1:1", "profile": "dev"}, "profile", "goes without endpoints"),
    ({"group": "orders", "mode": "documents", "minPartitions": "8"}, "minPartitions", "goes with mode=log alone"),
    ({"group": "orders", "readPreference": "leader", "location": "zone=a"}, "location", "means nothing with"),
    ({"group": "orders", "readPreference": "near"}, "readPreference", "did you mean 'nearest'?"),
    ({"group": "orders", "valueFormat": "avro"}, "valueFormat", "'avro' is none of binary, json"),
    ({"group": "orders", "minPartitions": "0"}, "minPartitions", "'0' is no number from 1 to 100000"),
    ({"group": "orders", "minPartitions": "9" * 20}, "minPartitions", "is no number from 1 to 100000"),
    ({"group": "orders", "minPartitions": "two"}, "minPartitions", "'two' is no number"),
    ({"group": "orders", "failOnDataLoss": ""}, "failOnDataLoss", "'' is neither true nor false"),
    ({"group": "orders", "startingTimestamp": "yesterday"}, "startingTimestamp", "neither milliseconds since 1970 nor"),
    ({"group": "orders", "startingTimestamp": "2026-01-31T12:00:00"}, "startingTimestamp", "has no time zone"),
    ({"group": "orders", "startingTimestamp": "9" * 30}, "startingTimestamp", "neither milliseconds since 1970 nor"),
    ({"group": "orders", "tls.key": "k"}, "tls.ca", "go together"),
    ({"group": "orders", "tls.ca": "c", "tls.cert": "c"}, "tls.key", "go together"),
    ({"group": "orders", "tls.serverName": "n"}, "tls.ca", "go together"),
])
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], field: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        Options.of(given)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ") and said in str(refused.value)


def test_options_and_their_errors_travel_between_processes() -> None:
    options = Options.of({"group": "orders", **TLS})
    assert pickle.loads(pickle.dumps(options)) == options
    error = pickle.loads(pickle.dumps(InvalidOption("group", "is missing: x")))
    assert (error.field, str(error)) == ("group", "group: is missing: x")
