"""A replica that is opened again: what its stored state vouches for must be in its log."""

from __future__ import annotations

import pytest
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.limits import Limits
from tidemark_core.replication.replica import Replica, ReplicaState, Role

from tests.core.support import SHARD, A, Author, B, C


def stored(commit: int, role: Role = Role.FOLLOWER) -> bytes:
    return ReplicaState(1, 10, role, commit, -1, (A, B, C)).encode()


@pytest.mark.parametrize("role", [Role.FENCED, Role.FOLLOWER, Role.LEADER, Role.DEPOSED])
def test_k14_a_log_that_ends_below_its_stored_commit_is_not_opened(role: Role) -> None:
    """The state is written with or behind the entries, so the disk lost what it had synced."""
    author = Author()
    author.opening()
    for count in (1, 3, 2):
        author.data(count)
    ends = [-1, *(entry.last for entry in author.entries)]
    for kept, end in enumerate(ends):
        for commit in ends:
            if commit <= end:
                replica = Replica.restore(SHARD, A, Limits(), stored(commit, role), None, author.entries[:kept])
                assert (commit, end) == (replica.commit, replica.log.head.offset)
            else:
                with pytest.raises(RemoteViolation, match=f"K14: commit {commit} is stored, but the log ends at"):
                    Replica.restore(SHARD, A, Limits(), stored(commit, role), None, author.entries[:kept])
