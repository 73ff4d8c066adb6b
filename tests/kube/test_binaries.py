"""The builder of the test programs, without building anything large."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kube import binaries
from tests.waiting import PATIENCE_S

GO = """#!/bin/sh
[ "$1" = version ] && { echo go version go1.99.0 linux/amd64; exit 0; }
while [ "$1" != -o ]; do shift; done
echo "$2" >> "$BUILDS"
[ -z "$BROKEN" ] || { echo "package is broken" >&2; exit 1; }
printf '#!/bin/sh\\necho v%s\\n' "$SAYS" > "$2"
chmod +x "$2"
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, no assets and a `go` that builds scripts."""
    executable(tmp_path / "bin" / "go", GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    one = {"etcd": binaries.TOOLS["etcd"]}
    monkeypatch.setattr(binaries, "TOOLS", one)
    monkeypatch.setenv("SAYS", binaries.pinned_version(one["etcd"]).removeprefix("v"))
    return tmp_path


def builds(machine: Path) -> int:
    log = machine / "builds"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("assets", [binaries.ASSETS, *binaries.OTHER_TOOLS], ids=lambda path: path.name)
def test_every_tool_is_pinned_and_declared(assets: Path) -> None:
    found = re.search(r"^tool (?:\((?P<several>[^)]*)\)|(?P<one>\S+))$", (assets / "go.mod").read_text(), re.MULTILINE)
    assert found
    tools = binaries.tools_of(assets).values()
    assert sorted((found["several"] or found["one"]).split()) == sorted(tool.package for tool in tools)
    assert all(binaries.pinned_version(tool, assets).startswith("v") for tool in tools)


def test_a_program_is_built_once(machine: Path) -> None:
    said: list[str] = []
    first = binaries.prepare(said.append)
    assert first == {"etcd": binaries.cache_directory() / "etcd"}
    assert binaries.prepare(said.append) == first
    assert builds(machine) == 1
    assert len(said) == 1
    assert "building etcd" in said[0]


def test_a_folder_of_assets_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = executable(machine / "assets" / "etcd", "#!/bin/sh\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(own.parent))
    assert binaries.prepare(pytest.fail) == {"etcd": own}


def test_without_go_the_message_says_how_to_get_the_programs(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(binaries.Unavailable, match=r"no etcd: put Go 1\.\d+ or newer on PATH.*KUBEBUILDER_ASSETS"):
        binaries.prepare(pytest.fail)


def test_an_old_go_is_none(machine: Path) -> None:
    executable(machine / "bin" / "go", "#!/bin/sh\necho go version go1.19.1 linux/amd64\n")
    with pytest.raises(binaries.Unavailable, match=r"go1\.19\.1"):
        binaries.prepare(pytest.fail)


def test_a_build_that_fails_leaves_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "yes")
    with pytest.raises(binaries.BuildFailed, match="package is broken"):
        binaries.prepare(lambda text: None)
    assert binaries.find("etcd") is None


@pytest.mark.parametrize("broken", [binaries.JUDGES, binaries.ASSETS], ids=["the judge", "etcd"])
def test_of_optional_programs_the_judge_alone_may_fail_to_build(
    broken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(_: object, assets: Path) -> dict[str, Path]:
        if assets == broken:
            raise binaries.BuildFailed("no module")
        return {}

    monkeypatch.setattr(binaries, "prepare", prepare)
    for optional in (False, True):
        if optional and broken == binaries.JUDGES:
            binaries.main(optional=True)
            assert capsys.readouterr().out == "no module\n"
        else:
            with pytest.raises(binaries.BuildFailed):
                binaries.main(optional=optional)


def test_a_program_of_another_version_is_refused(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYS", binaries.pinned_version(binaries.TOOLS["etcd"]).removeprefix("v") + "1")
    with pytest.raises(binaries.BuildFailed, match="and says"):
        binaries.prepare(lambda text: None)
    assert [path.name for path in binaries.cache_directory().iterdir()] == ["lock"]


def test_the_second_builder_waits_and_finds_it_done(machine: Path) -> None:
    directory = binaries.cache_directory()
    directory.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX);"
         " print('held', flush=True); sys.stdin.read()", str(directory / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin and holder.stdout
    assert holder.stdout.readline() == "held\n"

    def the_other_finishes(text: str) -> None:
        assert "waiting" in text
        executable(directory / "etcd", "#!/bin/sh\n")
        assert holder.stdin
        holder.stdin.close()

    assert binaries.prepare(the_other_finishes) == {"etcd": directory / "etcd"}
    holder.wait(PATIENCE_S)
    assert builds(machine) == 0


def test_another_go_mod_has_another_cache(machine: Path, tmp_path: Path) -> None:
    before = binaries.cache_directory()
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((binaries.ASSETS / name).read_bytes())
    assert binaries.cache_directory(tmp_path) == before
    (tmp_path / "go.sum").write_text("other\n")
    assert binaries.cache_directory(tmp_path) != before
    assert binaries.cache_directory(binaries.PROMETHEUS) != before
