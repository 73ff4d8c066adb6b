"""`tidemark backup` and `restore` on a fake cluster: results, JSON documents, errors, and the example Jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli_harness import Cli

from tests.fake_in_a_thread import FakeInAThread

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes" / "backup"


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    """One node with the documents `settings` and `copy`."""
    started = FakeInAThread()

    async def add() -> None:
        started.cluster.add_documents("settings", 2)
        started.cluster.add_documents("copy", 1)

    started.call(add())
    yield started
    started.stop()


@pytest.fixture
def on_fake(fake: FakeInAThread, cli: Cli) -> Cli:
    return lambda *arguments: cli(*arguments, "--cluster", fake.address)


def test_a_backup_is_taken_verified_and_restored(
    on_fake: Cli, cli: Cli, fake: FakeInAThread, tmp_path: Path
):
    for key in ("a", "b", "c"):
        assert on_fake("put", "settings", key, f"value of {key}").code == 0
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    made = on_fake("backup", "settings", "--to", first)
    assert (made.code, made.out.split(" are in ")[0]) == (0, "3 documents of 2 shards of settings")
    assert on_fake("put", "settings", "b", "value of b, again").code == 0
    changed = on_fake("backup", "settings", "--to", third, "--since", first, "--json")
    assert changed.code == 0 and (changed.document["count"], changed.document["fetched"]) == (3, 1)
    assert changed.document["notes"] == []
    for node in fake.cluster.nodes.values():
        node.changes.lineage = b"another history."
    again = on_fake("backup", "settings", "--to", second, "--since", first, "--json")
    assert again.code == 0 and again.document["count"] == again.document["fetched"] == 3
    assert "everything is read" in again.err and again.document["notes"]
    verified = cli("backup", "verify", second, "--json")
    assert verified.code == 0
    assert {key: verified.document[key] for key in ("group", "count", "content")} == {
        "group": "settings", "count": 3, "content": again.document["content"]}
    restored = on_fake("restore", third, "--group", "copy", "--json")
    assert restored.code == 0, restored.err
    assert restored.document == {
        "group": "copy", "from": third, "documents": 3, "written": 3, "expired": 0,
        "content": again.document["content"], "equal": True,
    }
    assert on_fake("get", "copy", "b").out.startswith("value of b")


def test_errors_are_one_line_with_what_to_do(on_fake: Cli, cli: Cli, tmp_path: Path):
    folder = tmp_path / "b"
    assert on_fake("put", "settings", "k", "v").code == 0
    assert on_fake("backup", "settings", "--to", str(folder)).code == 0
    exists = on_fake("backup", "settings", "--to", str(folder), "--json")
    assert (exists.code, exists.document["error"]) == (1, "BACKUP_EXISTS")
    full = on_fake("restore", str(folder), "--group", "settings", "--json")
    assert (full.code, full.document["error"]) == (1, "GROUP_NOT_EMPTY")
    assert "new group" in full.document["advice"]
    next(folder.rglob("*.arrow")).unlink()
    for damaged in (cli("backup", "verify", str(folder)), on_fake("restore", str(folder), "--group", "copy")):
        assert damaged.code == 1 and "000000.arrow is missing" in damaged.err and "hint:" in damaged.err
    log = on_fake("backup", "orders", "--to", str(tmp_path / "log"), "--json")
    assert (log.code, log.document["error"]) == (1, "WRONG_KIND")
    absent = on_fake("backup", "absent", "--to", str(tmp_path / "log"), "--json")
    assert (absent.code, absent.document["error"]) == (1, "UNKNOWN_GROUP")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["settings"], "names no folder for the backup"),
        (["verify"], "names no folder to verify"),
        (["settings", "dir", "--to", "x"], "goes with `tidemark backup verify DIR`"),
        (["settings", "--to", "x", "--lease", "1"], "--lease"),
    ],
)
def test_wrong_usage_is_said(cli: Cli, arguments: list[str], said: str):
    ran = cli("backup", *arguments)
    assert ran.code == 2 and said in " ".join(ran.err.split())


@pytest.mark.parametrize("name", ["backup", "restore"])
def test_the_example_job_runs_a_command_that_exists(name: str, cli: Cli):
    *_, job = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert (program, job["kind"]) == ("tidemark", "Job") and name in arguments
    arguments = [each for each in arguments if not each.startswith("--tls")]
    ran = cli(*arguments, "--help")
    assert ran.code == 0
    options = [each.split("=")[0] for each in arguments if each.startswith("--")]
    assert options and all(option in ran.out for option in options)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert any(each.split("=")[-1].startswith(mounted["backups"] + "/") for each in arguments)
