"""Named clusters: the file, which cluster a command means, and completion of names that the cluster knows."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import Cli
from tidemark_wire import profile_file

from tests.fake_in_a_thread import FakeInAThread


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [each for each in os.environ if each.startswith("TIDEMARK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(profile_file.GROUP_VARIABLE, "")
    file = tmp_path / "config" / "profiles.toml"
    monkeypatch.setenv(profile_file.CONFIG_VARIABLE, str(file))
    monkeypatch.chdir(tmp_path)
    return file


def test_a_profile_names_a_cluster_a_certificate_and_a_group(cli: Cli, config: Path):
    assert cli("profile", "list", "--json").document["profiles"] == []
    tls = [word for part in ("ca", "cert", "key") for word in (f"--{part}", f"{part}.pem")]
    assert cli("profile", "add", "prod", "--address", "a:1", "--address", "b:2", "--group", "orders", *tls).code == 0
    assert cli("profile", "add", "a.b", "--address", "127.0.0.1:3").code == 0
    first, second = cli("profile", "list", "--json").document["profiles"]
    assert (first["name"], first["current"], second["current"]) == ("a.b", False, True)
    assert (second["addresses"], second["group"]) == (["a:1", "b:2"], "orders")
    assert second["cert"] == str(Path("cert.pem").absolute())
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert cli("profile", "use", "a.b").code == 0
    assert "a.b*" in cli("profile", "list").out
    assert cli("profile", "remove", "a.b", "--json").document == {"removed": "a.b"}
    assert [each["current"] for each in cli("profile", "list", "--json").document["profiles"]] == [False]


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "bad name", "--address", "a:1"), ("add", "x", "--address", "http://a:1"), ("add", "x"),
        ("add", "x", "--address", "a:1", "--ca", "f"), ("use", "nothing"), ("remove", "nothing"),
    ],
)
def test_wrong_profiles_are_refused(cli: Cli, config: Path, arguments: tuple[str, ...]):
    assert cli("profile", *arguments).code == 2
    assert not config.exists()


def test_a_command_means_the_cluster_of_its_profile(cli: Cli, fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch):
    assert cli("profile", "add", "here", "--address", fake.address, "--group", "orders").code == 0
    assert cli("profile", "add", "gone", "--address", "127.0.0.1:1").code == 0
    assert cli("shards", "--json").document["groups"][0]["name"] == "orders", "the current one"
    assert cli("read", "--json").document == [], "its group"
    assert cli("--profile", "here", "shards").code == 0
    assert cli("--profile", "gone", "shards").code == 3
    assert cli("--profile", "nothing", "shards").code == 2
    monkeypatch.setenv(profile_file.PROFILE_VARIABLE, "gone")
    assert cli("shards").code == 3
    assert cli("shards", "--cluster", fake.address).code == 0, "--cluster goes before"


def test_the_doctor_asks_the_cluster_of_the_profile(cli: Cli, fake: FakeInAThread):
    assert cli("profile", "add", "here", "--address", fake.address).code == 0
    told = cli("doctor", "--json")
    assert [each["check"] for each in told.document["checks"]] == ["operator"], "no process of this machine"
    assert "UNIMPLEMENTED" in told.document["checks"][0]["what"], "a node is no operator"


def test_a_local_cluster_goes_before_the_current_profile(cli: Cli, fake: FakeInAThread, tmp_path: Path):
    assert cli("profile", "add", "here", "--address", fake.address).code == 0
    (tmp_path / ".tidemark").mkdir()
    (tmp_path / ".tidemark" / "state.json").write_text("{broken")
    assert "cannot be read" in cli("shards").err
    assert cli("--profile", "here", "shards").code == 0


def test_a_directory_that_is_given_means_no_profile(
    cli: Cli, fake: FakeInAThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert cli("profile", "add", "here", "--address", fake.address, "--group", "orders").code == 0
    (tmp_path / "in.txt").write_text("v\n")
    typo = tmp_path / "typo"
    told = cli("append", "orders", str(tmp_path / "in.txt"), "--dir", str(typo))
    assert told.code != 0 and f"no local cluster in {typo}" in told.err
    monkeypatch.setenv("TIDEMARK_DIR", str(typo))
    assert f"no local cluster in {typo}" in cli("shards").err
    assert cli("--profile", "here", "shards").code == 0
    assert fake.shard().head == 0, "nothing was appended to the profile's cluster"


def completions(words: str) -> list[str]:
    """Return what a bash offers for the last word of a command line."""
    environment = {
        **os.environ, "_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    script = "from tidemark_cli.commands import app; app(prog_name='tidemark')"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert "Traceback" not in finished.stderr, finished.stderr
    return finished.stdout.split()


def test_commands_groups_nodes_and_profiles_are_completed(cli: Cli, fake: FakeInAThread):
    assert {"shards", "status", "subscriptions"} <= set(completions("tidemark s"))
    assert completions("tidemark read or") == [], "no cluster is no error"
    assert cli("profile", "add", "here", "--address", fake.address).code == 0
    assert completions("tidemark read or") == ["orders"]
    nodes = sorted(each.node for each in fake.cluster.shard_map().nodes)
    assert completions("tidemark swap --from ") == nodes
    assert completions("tidemark profile use h") == ["here"]
