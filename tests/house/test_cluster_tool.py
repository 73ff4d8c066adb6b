"""`tools/cluster` as far as it goes without machines: the ledger's verdicts, what is asked of a machine, the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.cluster import __main__, cgroups, images, places, quickstart, requirements
from tools.cluster.__main__ import main
from tools.cluster.commands import Failed, Started, run
from tools.cluster.ledger import Note, judge
from tools.cluster.machines import Credentials, Machine
from tools.cluster.scenarios import SCENARIOS

REPOSITORY = Path(__file__).parents[2]


# --- the ledger


def placed(*numbers: int, key: str = "k", shard: int = 0) -> list[Note]:
    return [Note(key, number, shard, offset) for offset, number in enumerate(numbers)]


def test_what_was_acknowledged_and_is_read_once_in_order_is_good() -> None:
    notes = placed(0, 1, 2)
    verdict = judge(notes, notes)
    assert verdict.good
    assert verdict.acknowledged == 3
    assert str(verdict) == "3 acknowledged, 0 unknown outcomes; 0 lost; 0 duplicated; 0 reordered; 0 never sent"


def test_an_unknown_outcome_may_be_there_or_not() -> None:
    notes = [*placed(0), Note("k", 1)]
    assert judge(notes, placed(0)).good
    assert judge(notes, placed(0, 1)).good
    assert judge(notes, placed(0)).unknown == 1


def test_the_ledger_finds_each_kind_of_fault() -> None:
    notes = placed(0, 1, 2)
    assert judge(notes, notes[:2]).lost == ["key k number 2 at 0/2"]
    assert judge(notes, [*notes, Note("k", 1, 0, 3)]).duplicated == ["key k number 1: 2 times"]
    assert judge(notes, [notes[0], notes[2], notes[1]]).reordered == ["key k: 1 after 2"]
    assert judge(notes, [*notes, Note("k", 7, 0, 3)]).invented == ["key k number 7"]
    elsewhere = [*notes[:2], Note("k", 2, 0, 9)]
    assert judge(notes, elsewhere).reordered == ["key k number 2: acknowledged at 0/2, read at (0, 9)"]
    for read in (notes[:2], [*notes, notes[1]], [notes[1], notes[0], notes[2]], elsewhere):
        assert not judge(notes, read).good


def test_keys_are_in_order_each_for_itself() -> None:
    a, b = placed(0, 1, key="a"), placed(0, 1, key="b", shard=1)
    assert judge([*a, *b], [a[0], b[0], b[1], a[1]]).good


# --- what a machine must permit


def test_a_user_without_root_hears_the_reason_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("skipped: this machine lacks\n  - root: ")
    assert main(["--required"]) == 1


def test_a_missing_command_and_a_failing_probe_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert requirements.missing() == [f"the command {name}" for name in requirements.COMMANDS]
    monkeypatch.undo()
    probe = requirements._probe("overlay mounts", "echo not permitted >&2; exit 1", [])
    assert probe == "overlay mounts (not permitted)"
    assert requirements._probe("nothing", "true", []) is None


@pytest.mark.parametrize(("files", "version", "missing"), [
    ({"cgroup.controllers": "cpuset cpu io memory pids\n"}, 2, []),
    ({"cgroup.controllers": "cpu io pids\n"}, 2, ["cpuset", "memory"]),
    ({}, 0, list(cgroups.NEEDED)),
])
def test_control_groups_of_version_2_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], version: int, missing: list[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_version_1", list)
    assert cgroups.version() == version
    assert cgroups.missing() == missing


# --- the page and the images


def test_the_page_is_divided_into_images_installation_and_the_rest() -> None:
    page = quickstart.page_commands("")
    assert [command.split()[1] for command in quickstart.page_commands("docker ")] == ["build", "build", "push", "push"]
    assert len(quickstart.page_commands(*quickstart.INSTALL)) == 4
    assert page[: len(quickstart.page_commands(*quickstart.IMAGES))] == quickstart.page_commands(*quickstart.IMAGES)
    assert page[-6] == "kubectl delete pod writer reader", "where the clean-up begins"
    assert f"export REGISTRY={images.REGISTRY}/team" in page


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-" + "bookworm", images.base_image())


# --- the command


def test_every_scenario_has_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)
    assert all(line.rstrip().endswith(".") for line in lines)


def test_help_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "tools.cluster", "--help"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    assert "It needs root on Linux" in finished.stdout


def test_a_wrong_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "flood"])
    assert ended.value.code == 2
    assert "machine-loss" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["2", "21", "many"])
def test_a_wrong_number_of_machines_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--machines", count])
    assert ended.value.code == 2
    assert "--machines" in capsys.readouterr().err


def test_only_what_a_killed_run_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cgroups, "_hierarchies", list)
    owners = {"killed": 2**22 + 1, "other": os.getpid()}
    monkeypatch.setattr(__main__, "_runs", lambda process: process == owners["other"])
    for name, owner in owners.items():
        places_of = places.Places(tmp_path / f"{cgroups.PREFIX}{name}")
        places_of.logs.mkdir(parents=True)
        places_of.owner.write_text(str(owner))
    __main__._remove_left_over()
    assert [path.name for path in tmp_path.iterdir()] == [f"{cgroups.PREFIX}other"]


def test_a_command_that_fails_shows_its_end(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"exit code 3\n(?s:.*)reason"):
        run("bash", "-c", "echo reason >&2; exit 3", log=tmp_path / "log")
    assert "reason" in (tmp_path / "log").read_text()
    started = Started(["bash", "-c", "echo broken; exit 4"], tmp_path / "started.log")
    with pytest.raises(Failed, match=r"started ended with 4:\nbroken"):
        started.wait_until(lambda: False, 30)


@pytest.mark.parametrize("passed", [True, False])
def test_logs_stay_after_a_failure_alone_and_keys_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_of = places.Places(tmp_path / "tidemark-cluster-1")
    machine_logs = run_of.disk("machine-1") / "data" / "logs"
    for folder in (run_of.logs, run_of.keys, machine_logs):
        folder.mkdir(parents=True)
    (run_of.logs / "etcd.log").write_text("etcd")
    (run_of.keys / "admin.key").write_text("secret")
    (machine_logs / "kubelet.log").write_text("kubelet")
    __main__._keep_logs(run_of, passed=passed)
    assert not run_of.state.exists()
    kept = places.cache() / "logs" / "tidemark-cluster-1"
    found = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert found == ([] if passed else ["etcd.log", "machine-1/kubelet.log"])
    assert (str(kept) in capsys.readouterr().out) is not passed


# --- machines


def test_a_cut_drops_both_directions_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1, places.Places(tmp_path), tmp_path, tmp_path, Credentials(tmp_path, tmp_path, tmp_path))
    (machine.data / "config").mkdir(parents=True)
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(Machine, "inside", lambda self, *command: said.append(command))
    machine.cut([("10.77.101.2", "10.77.102.3")])
    assert said == [("nft", "-f", "/var/lib/machine/config/cut.nft")]
    rules = [line for line in (machine.data / "config" / "cut.nft").read_text().splitlines() if "saddr" in line]
    assert rules == [
        "ip saddr 10.77.101.2 ip daddr 10.77.102.3 drop", "ip saddr 10.77.102.3 ip daddr 10.77.101.2 drop"]


def test_pods_of_machines_have_networks_of_their_own() -> None:
    assert len({places.pod_network(number) for number in range(1, 10)}) == 9
    assert places.CONTROL_ADDRESS not in {places.machine_address(number) for number in range(1, 100)}
