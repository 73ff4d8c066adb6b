"""Home of a client: calls from another loop, thread or forked child are refused and harm none; so are closed ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tidemark
from fake_cluster import FakeCluster
from tidemark import errors, profiles
from tidemark_wire import profile_file

from tests.waiting import until


def elsewhere(work: Callable[[], object]) -> object:
    """Run something in a thread; return what it returns or raises."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert found, "the call hangs"
    return found[0]


async def test_a_call_from_another_loop_is_refused_and_the_owner_goes_on(cluster: FakeCluster, client: tidemark.Client):
    async with client.appender("orders") as appender:
        await appender.append(b"one")
        reader = client.read("orders")
        calls: list[Callable[[], object]] = [
            lambda: asyncio.run(client.group("orders")), lambda: asyncio.run(client.limbo("orders", 0)),
            lambda: asyncio.run(appender.append(b"two")), lambda: asyncio.run(appender.flush()),
            lambda: asyncio.run(appender.close()), lambda: appender.append_nowait(b"two"),
            lambda: asyncio.run(reader.next_batches(1)), lambda: asyncio.run(reader.close()),
            lambda: asyncio.run(client.close()), lambda: client.appender("orders"), lambda: client.read("orders"),
            lambda: client.documents("orders"),
        ]
        for call in calls:
            refused = await asyncio.to_thread(elsewhere, call)
            assert isinstance(refused, errors.WrongLoop), refused
            assert "Connect again" in refused.advice
        await appender.append(b"three")
        assert {record.value async for record in reader} == {b"one", b"three"}   # keyless records lie on any shard




async def test_parts_that_follow_documents_are_refused_elsewhere(
    cluster: FakeCluster, client: tidemark.Client, tmp_path: Path
):
    cluster.add_documents("settings", 1)
    await until(lambda: client.routing.find("settings"))
    documents = client.documents("settings")
    await documents.put(b"k", b"v")
    scan, changes = documents.scan(), client.changes("settings")
    unopened = client.view("settings", tmp_path / "unopened.db")
    async with client.view("settings", tmp_path / "view.db") as view:
        await view.catch_up()
        batches = changes.batches()
        await anext(batches)
        calls: list[Callable[[], object]] = [
            lambda: asyncio.run(anext(scan.pages())), lambda: asyncio.run(scan.close()),
            lambda: asyncio.run(anext(changes.snapshots())), lambda: asyncio.run(changes.open()),
            lambda: asyncio.run(anext(batches)), lambda: asyncio.run(changes.ack()),
            lambda: asyncio.run(changes.barrier(0.1)), lambda: asyncio.run(changes.close()),
            lambda: asyncio.run(unopened.open()), lambda: asyncio.run(view.get(b"k")),
            lambda: asyncio.run(view.catch_up()), lambda: asyncio.run(view.verify()),
            lambda: asyncio.run(view.wait_closed()), lambda: asyncio.run(view.close()),
        ]
        for number, call in enumerate(calls):
            refused = await asyncio.to_thread(elsewhere, call)
            assert isinstance(refused, errors.WrongLoop), (number, refused)
        assert (await view.get(b"k")).value == b"v"
    assert [document.key async for document in scan] == [b"k"]
    await changes.ack()


SYNC = """
import os, sys, threading
import tidemark.sync
from tidemark import errors
client = tidemark.sync.connect(sys.argv[1])
appender = client.appender("orders")
appender.append(b"one")
child = os.fork()
if child == 0:
    codes = []
    for call in (lambda: appender.append(b"two"), lambda: client.limbo("orders", 0), client.close):
        try:
            call()
        except errors.WrongLoop as error:
            codes.append(error.reason)
    os._exit(0 if codes == ["WRONG_LOOP"] * 3 else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, f"the child was not refused: {code}"
threads = [threading.Thread(target=appender.append, args=(b"two",)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(list(client.read("orders"))) == 4
client.close()
print("done")
"""


async def test_a_forked_child_of_the_synchronous_client_is_refused(cluster: FakeCluster):
    """A process of its own forks: that of the tests has threads that a child lacks."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", SYNC, cluster.addresses()[0], stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 40)
    assert out.strip() == b"done", err.decode()


STARTS_OTHERS = """
import tidemark
import asyncio, subprocess, sys

async def main():
    async with await tidemark.connect(sys.argv[1]) as client, client.appender("orders") as appender:
        async def write():
            while True:
                await asyncio.gather(*(appender.append(bytes(100)) for _ in range(50)))
        writing = asyncio.create_task(write())
        codes = set()
        for _ in range(60):
            process = await asyncio.create_subprocess_exec("/bin/true", stdout=subprocess.PIPE)
            await process.communicate()
            codes.add(process.returncode)
        writing.cancel()
        print(codes)

tidemark.run(main())
"""


async def test_a_program_starts_others_while_calls_are_under_way(cluster: FakeCluster):
    """gRPC's fork handlers crashed many of the processes that uvloop started meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTS_OTHERS, cluster.addresses()[0], stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    assert out.decode() == "{0}\n"


HOOK = """
import importlib, os, sys
class Hook:
    def find_spec(self, name, *_):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
sys.meta_path.insert(0, Hook())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize("package", ["tidemark", "tidemark_cli.target"])
def test_grpc_is_set_up_before_it_is_imported(package: str):
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    told = subprocess.run(
        [sys.executable, "-c", HOOK, package], capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert told.stdout == "0\n", told.stderr


async def test_calls_after_close_give_closed(cluster: FakeCluster):
    address = cluster.addresses()[0]

    def work() -> None:
        client = tidemark.sync.connect(address)
        appender, reader = client.appender("orders"), client.read("orders")
        appender.append(b"one")
        assert [record.value for record in reader] == [b"one"]
        with pytest.raises(errors.Closed):
            list(reader)
        waiting = threading.Thread(target=elsewhere, args=(lambda: list(client.read("orders", until=None)),))
        waiting.start()
        client.close()
        waiting.join(20)
        assert not waiting.is_alive(), "a reader of another thread hangs"
        for call in (
            lambda: appender.append(b"two"), lambda: appender.append_later(b"two"), lambda: client.appender("orders"),
            lambda: client.read("orders"), lambda: client.limbo("orders", 0), lambda: appender.flush(),
        ):
            with pytest.raises(errors.Closed):
                call()
        for close in (appender.close, reader.close, client.close, client.close):
            close()

    await asyncio.to_thread(work)


# --- where to begin


@pytest.mark.parametrize("mode", ["scd", "leader"])
async def test_latest_begins_behind_what_is_acknowledged(client: tidemark.Client, mode: str):
    async with client.appender("orders") as appender:
        before = await appender.append(b"before", key=b"k")
        assert [record.value async for record in client.read("orders", from_="latest", mode=mode)] == []
        tail = client.read("orders", from_="latest", until=None, mode=mode)
        first = asyncio.ensure_future(anext(aiter(tail)))
        await until(lambda: tail.positions[before.shard] == before.offset + 1, "the reader knows where to begin")
        await appender.append(b"behind", key=b"k")
        assert (await asyncio.wait_for(first, 20)).value == b"behind"
        await tail.close()
    with pytest.raises(errors.InvalidArgument, match="neither 'earliest' nor 'latest'"):
        client.read("orders", from_="newest")


# --- which cluster


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TIDEMARK_"):
            monkeypatch.delenv(name)
    file = tmp_path / "profiles.toml"
    monkeypatch.setenv(profile_file.CONFIG_VARIABLE, str(file))
    return file


async def test_connect_takes_a_profile_or_the_environment(
    cluster: FakeCluster, config: Path, monkeypatch: pytest.MonkeyPatch
):
    address = cluster.addresses()[0]
    with pytest.raises(errors.InvalidArgument, match="give host:port of a node, set TIDEMARK_CLUSTER"):
        await tidemark.connect()
    config.write_text(f'current = "here"\n[profiles.here]\naddresses = ["{address}"]\n'
                      '[profiles.gone]\naddresses = ["127.0.0.1:1"]\n')
    async with await tidemark.connect() as client:
        assert address in repr(client)
    async with await tidemark.connect(profile="here"):
        pass
    monkeypatch.setenv(profile_file.PROFILE_VARIABLE, "gone")
    with pytest.raises(errors.Unavailable):
        await tidemark.connect(timeout_s=0.2)
    monkeypatch.setenv(profiles.CLUSTER_VARIABLE, f"127.0.0.1:1,{address}")
    async with await tidemark.connect():
        pass
    with pytest.raises(errors.InvalidArgument, match=r"there is no profile 'elsewhere'.*there are: gone, here"):
        await tidemark.connect(profile="elsewhere")
    with pytest.raises(errors.InvalidArgument, match="goes without addresses"):
        await tidemark.connect(address, profile="here")


@pytest.mark.parametrize("text", ["not toml [", "[profiles.here]\n", '[profiles.here]\naddresses = 3\n', "profiles = 3",
                                  '[profiles.here]\naddresses = ["a:1"]\nca = "only"\n'])
async def test_a_damaged_file_is_an_error_that_names_it(config: Path, text: str):
    config.write_text(text)
    with pytest.raises(errors.InvalidArgument, match=str(config)):
        await tidemark.connect(profile="here")


async def test_a_certificate_of_a_profile_is_taken(config: Path):
    config.write_text('[profiles.here]\naddresses = ["a:1"]\nca = "/no/ca"\ncert = "/no/cert"\nkey = "/no/key"\n')
    with pytest.raises(errors.InvalidArgument, match="/no/c"):
        await tidemark.connect(profile="here")


# --- what it says of itself


async def test_clients_and_their_parts_say_what_they_are(client: tidemark.Client):
    appender, reader = client.appender("orders"), client.read("orders", from_=3, shards=[0])
    assert repr(appender) == "<tidemark.Appender to 'orders', QUORUM, 0 bytes without an answer>"
    assert repr(reader) == "<tidemark.Reader of 'orders', scd, at {0: 3}, not begun>"
    assert "2 open parts" in repr(client)
    await reader.close()
    assert repr(reader).endswith("closed>")
    await client.close()
    assert repr(client).endswith("closed>")
