"""Comparing with an earlier commit: the direction of units, the files of a commit, a commit that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import against


def test_a_ratio_above_one_is_better_in_either_direction() -> None:
    assert against.ratio("MB/s", 100, 150) == pytest.approx(1.5)
    assert against.ratio("ms", 3, 2) == pytest.approx(1.5)


def test_a_commit_that_git_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no-such-commit"):
        against.check_out("no-such-commit", tmp_path)


def test_the_files_of_a_commit_carry_the_version_that_they_ask_for(tmp_path: Path) -> None:
    tree = against.check_out("HEAD", tmp_path)

    assert (tree / "bench" / "__main__.py").exists()
    assert "Version: 0.1.0" in (tree / "tidemark-0.1.0.dist-info" / "METADATA").read_text()
