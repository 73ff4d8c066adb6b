"""Views fed by real nodes: exactly once through kill -9 of leader and view, and verified document by document."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import tidemark
from node_harness import Three
from test_node_changes import Writer
from test_node_documents import put
from tidemark.errors import ViewRefused
from tidemark_core.documents.payload import Op, Write


async def contents(view: tidemark.SqliteView) -> dict[bytes, tuple[int, bytes]]:
    return {document.key: (document.seqno, document.value) for document in await view.scan()}


async def test_u55_a_view_equals_the_store_through_the_kill_of_a_leader_and_a_restart(
    three: Three, client: tidemark.Client, tmp_path: Path,
) -> None:
    writer, file = Writer(three), tmp_path / "view.db"
    await writer.write(*(put(b"k%d" % number, b"first") for number in range(50)))
    async with client.view(three.group.name, file) as view:
        await view.catch_up()
        assert await contents(view) == writer.documents
        killed = three.leader
        killed.kill()
        left = [node for node in three.nodes if node is not killed]
        await three.lead(left[0], left)
        await writer.write(put(b"k1", b"second"), Write(Op.DELETE, b"k2"), put(b"new", b"x" * 3000))
        await view.catch_up()
        assert await contents(view) == writer.documents
        result = await view.verify()
        assert result.good and result.digest == "equal" and result.documents == len(writer.documents)
    await writer.write(put(b"k3", b"while the view was away"), Write(Op.DELETE, b"k4"))

    async with client.view(three.group.name, file) as view:
        await view.catch_up()
        assert await contents(view) == writer.documents
        assert view.received == 2, "it goes on from its position"
        assert view.rebuilds == 0


async def test_verify_names_documents_that_the_view_lost_kept_or_changed(
    three: Three, client: tidemark.Client, tmp_path: Path,
) -> None:
    writer, file = Writer(three), tmp_path / "view.db"
    await writer.write(*(put(b"k%d" % number, b"v") for number in range(9)))
    async with client.view(three.group.name, file) as view:
        await view.catch_up()
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM documents WHERE key = ?", (b"k1",))
        db.execute("UPDATE documents SET value = ? WHERE key = ?", (b"forged", b"k2"))
        db.execute("UPDATE documents SET key = ? WHERE key = ?", (b"foreign", b"k3"))

    async with client.view(three.group.name, file) as view:
        result = await view.verify()

    assert not result.good
    assert set(result.mismatches) == {b"k1", b"k2", b"k3", b"foreign"}
    assert {b"k2", b"foreign"} <= set(result.rotten)


async def test_a_view_of_another_group_or_of_no_group_is_refused(
    three: Three, client: tidemark.Client, tmp_path: Path,
) -> None:
    file = tmp_path / "view.db"
    async with client.view(three.group.name, file):
        pass
    with pytest.raises(ViewRefused, match=f"is a view of '{three.group.name}', not of 'nothing'"):
        async with client.view("nothing", file):
            pass
    async with client.view("nothing", tmp_path / "other.db") as view:
        with pytest.raises(tidemark.errors.UnknownGroup):
            await view.catch_up()
