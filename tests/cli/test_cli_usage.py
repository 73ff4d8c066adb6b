"""Commands without a cluster: wrong usage, nothing there, the form of errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_harness import Cli
from tidemark.errors import InvalidArgument
from tidemark.routing import check_addresses
from tidemark_cli import output
from tidemark_cli.failures import describe

NO_TLS_FILES = ("--tls-ca", "/no/ca", "--tls-cert", "/no/cert", "--tls-key", "/no/key")


def test_no_local_cluster_says_how_to_start_one(cli: Cli, tmp_path: Path):
    for command in (("shards",), ("dev", "status"), ("read", "x"), ("append", "x", "/dev/null"), ("get", "groups")):
        result = cli(*command, "--dir", str(tmp_path))
        assert result.code == 1, command
        assert "tidemark dev up" in result.err
        assert result.out == ""
        assert len(result.err.strip().splitlines()) == 2, "one line what, one line what next"


def test_errors_are_one_json_document_when_json_is_asked_for(cli: Cli, tmp_path: Path):
    result = cli("shards", "--json", "--dir", str(tmp_path))
    assert result.document["error"] == "LOCAL_RUNTIME"
    assert result.document["advice"]


def test_an_unreachable_cluster_is_exit_code_3(cli: Cli):
    result = cli("shards", "--cluster", "127.0.0.1:1")
    assert result.code == 3
    assert "hint:" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("nonsense",), ("read",), ("read", "g", "--from", "now"), ("read", "g", "--json", "--jsonl"),
        ("read", "g", "--tail", "--json"), ("swap", "g", "--from", "a", "--to", "b"), ("transfer",),
        ("swap", "--from", "a", "--to", "b", "--rate", "fast"),
        ("swap", "g", "0", "--from", "a", "--to", "b", "--rate", "50Mi"),
        ("contract", "g", "zero", "--from", "a"), ("recover-shard", "g", "0"),
        ("shards", "--cluster", "nowhere"), ("get", "teapot"),
        ("debug", "dump", "--shard", "1"), ("dev", "up", "--nodes", "0"),
        ("recover-metadata", "--nodes", "127.0.0.1:1"), ("recover-metadata", "--accept-loss", "orders"),
        ("recover-metadata", "--group", "orders=3"), ("recover-metadata", "--etcd-user", "root"),
        ("recover-metadata", "--nodes", "nowhere", "--etcd", "http://127.0.0.1:1", "--name", "main"),
        ("recover-metadata", "--nodes", "127.0.0.1:1", "--etcd", "nowhere", "--name", "main"),
        ("recover-metadata", "--nodes", "127.0.0.1:1", "--etcd", "https://127.0.0.1:1", "--name", "main"),
        (*NO_TLS_FILES, "recover-metadata", "--nodes", "127.0.0.1:1", "--etcd", "http://127.0.0.1:1", "--name", "main"),
        (*NO_TLS_FILES, "shards", "--cluster", "127.0.0.1:1"),
    ],
)
def test_wrong_usage_is_exit_code_2(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err


def test_missing_files_are_named(cli: Cli, tmp_path: Path):
    for command in (("append", "g", "/no/such/file"), ("apply", "-f", "/no/such/file")):
        result = cli(*command, "--dir", str(tmp_path))
        assert result.code == 1
        assert "cannot read /no/such/file" in result.err


def test_version_and_help_succeed(cli: Cli):
    assert cli("--version").out.startswith("tidemark ")
    for command in ((), ("dev",), ("append",), ("read",), ("swap",), ("demo",)):
        assert cli(*command, "--help").code == 0


def test_what_people_write_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    """Brackets are no markup and colons no pictures, wherever a text goes."""
    said = "metadata.annotations[tidemark.dev/restartedAt]: [/red] :smile: is no time"
    output.stdout.print(output.table(["WHAT"], [[said]]))
    output.note(said)
    output.fail(said, said)
    captured = capsys.readouterr()
    assert captured.out.count(said) == 1
    assert captured.err.count(said) == 3
    with output.progress() as bar:
        bar.add_task(said)
        assert said in [str(column(bar.tasks[0])) for column in bar.columns if not isinstance(column, str)]
    assert capsys.readouterr() == ("", ""), "nothing is drawn where no terminal is"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:6690", "leave the scheme away"), ("127.0.0.1:66900", "not host:port"),
        ("127.0.0.1/x:80", "not host:port"), ("a:b:6690", "not host:port"), ("me@host:80", "not host:port"),
    ],
)
def test_an_address_that_is_none_is_refused_at_once(cli: Cli, address: str, said: str):
    with pytest.raises(InvalidArgument, match=said):
        check_addresses(address)
    result = cli("shards", "--cluster", address)
    assert (result.code, "is not HOST:PORT" in result.err) == (2, True)


def test_an_error_names_the_option_and_not_the_argument_of_the_library():
    failure = describe(InvalidArgument("timeout_s", "is nan, must be a number of at least 0.001"))
    assert failure is not None
    assert failure.message == "--timeout: is nan, must be a number of at least 0.001"
    assert failure.advice == "Correct --timeout."
