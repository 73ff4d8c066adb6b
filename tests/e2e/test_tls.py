"""A cluster with mutual TLS: who gets in and may do what, and the replacement of the CA and of every certificate."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tidemark
from tidemark.errors import AccessDenied, InvalidArgument, PermissionDenied, Unavailable
from tidemark_core.base.refusals import Reason
from tidemark_operator import local
from tidemark_operator.certificates.authority import bundle_of, create_authority, issue
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.etcd import EtcdStore, StoreUnavailable
from tidemark_operator.etcd_access import TlsFiles
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import TlsSettings, read_material

from tests.waiting import PATIENCE_S, until

from .cluster import Cluster, condition
from .workload import Workload, check_every_copy, check_read_back, read_all

POLICY = Policy()
ACCESS = {"readers": ["rita"], "writers": ["will"], "admins": ["anna"]}


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4, tls=True)


def client_of(cluster: Cluster, name: str) -> TlsSettings:
    return TlsSettings.of_directory(cluster.runtime.certificates().issue(POLICY, Kind.CLIENT, name))


async def test_everything_works_over_tls(cluster: Cluster, client: tidemark.Client) -> None:
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more_on_every_shard()
        leaving = await cluster.leader(group)
        cluster.kill(leaving)
        await load.more_on_every_shard()
        await cluster.start(leaving)
        (spare,) = await cluster.spares(group)
        await cluster.change("SWAP", group, 0, from_node=leaving, to_node=spare, transfer=True)
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)
    (shown,) = await cluster.objects("TidemarkCluster")
    assert ("True", "Issued") == condition(shown, "CertificatesValid")[:2]
    assert set(shown["status"]["certificates"]) == {"caExpirationTime", "earliestExpirationTime"}


async def test_nobody_gets_in_without_a_certificate_of_this_cluster(cluster: Cluster, tmp_path: Path) -> None:
    addresses = [cluster.address(name) for name in cluster.nodes]
    with pytest.raises(Unavailable):
        await tidemark.connect(addresses, timeout_s=3)
    own = cluster.runtime.tls
    assert own is not None
    now, eve = datetime.now(UTC), Identity("e2e", Kind.ADMIN, "eve")
    authority = create_authority("e2e", now, POLICY.authority)
    foreign = CertificateFiles(tmp_path / "foreign", "e2e")
    foreign.put_holder(eve, issue(authority, Subject(eve), now, POLICY.certificate), Path(own.ca).read_bytes())
    with pytest.raises(Unavailable):
        await tidemark.connect(addresses, timeout_s=3, tls=TlsSettings.of_directory(foreign.folder(eve)))
    trusting = CertificateFiles(tmp_path / "trusting", "e2e")
    trusting.put_holder(eve, issue(authority, Subject(eve), now, POLICY.certificate), bundle_of([authority]))
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await tidemark.connect(addresses, timeout_s=8, tls=TlsSettings.of_directory(trusting.folder(eve)))
    with pytest.raises(InvalidArgument, match=r"^INVALID_ARGUMENT: tls: .*nothing"):
        await tidemark.connect(addresses, tls=TlsSettings(own.ca, own.cert, tmp_path / "nothing"))


async def test_etcd_is_for_the_operator_alone(cluster: Cluster) -> None:
    state, certificates = cluster.runtime.state, cluster.runtime.certificates()
    url, own = state.etcd_url, read_material(certificates.etcd_client())
    other = read_material(certificates.admin())
    assert url.startswith("https://")
    for tls, answers in (
        (TlsFiles(own.ca, own.certificate, own.key), True), (TlsFiles(own.ca), False),
        (TlsFiles(own.ca, other.certificate, other.key), False),
    ):
        store = EtcdStore([url], tls=tls)
        try:
            await store.get("/tidemark")
            assert answers
        except StoreUnavailable:
            assert not answers
        finally:
            await store.close()


async def test_a_client_may_do_what_the_access_lists_say(cluster: Cluster) -> None:
    group = await cluster.create_group(access=ACCESS)
    async with await cluster.connect(client_of(cluster, "will")) as will:
        async with will.appender(group) as appender:
            await appender.append(b"one", key=b"k")
        with pytest.raises(PermissionDenied, match="client/will is no reader"):
            await read_all(will, group)
        with pytest.raises(AccessDenied):
            await anext(aiter(will.read(group, until=None)))
        gap = await anext(aiter(will.read(group, until=None, gaps=True)))
        assert isinstance(gap, tidemark.Gap)
        assert tidemark.GapKind.ACCESS is gap.kind
    async with await cluster.connect(client_of(cluster, "rita")) as rita:
        assert [b"one"] == [record.value for record in await read_all(rita, group)]
        assert [b"one"] == [record.value for record in await read_all(rita, group, mode="leader")]
        async with rita.appender(group) as appender:
            with pytest.raises(PermissionDenied, match="client/rita is no writer") as caught:
                await appender.append(b"two", key=b"k")
        assert Reason.PERMISSION_DENIED is caught.value.refused.reason
    async with await cluster.connect(client_of(cluster, "anna")) as anna:
        assert [b"one"] == [record.value for record in await read_all(anna, group)]


async def test_the_command_line_finds_its_certificate_and_takes_another(cluster: Cluster) -> None:
    group = await cluster.create_group()
    assert 0 == (await cluster.cli("append", group, stdin=b"one\n")).code
    issued = await cluster.cli("dev", "certs", "issue", "bob", "--role", "writer", "--group", group, "--json")
    assert 0 == issued.code, issued.err
    assert "was open to every client" in issued.err
    bob = [part for option in ("ca", "cert", "key") for part in (f"--tls-{option}", issued.document[option])]
    assert 0 == (await cluster.cli(*bob, "append", group, stdin=b"two\n")).code
    for refused in (
        ("read", group, "--json"), ("transfer", group, "0", "--to", cluster.nodes[0], "--json"),
        ("delete", "loggroup", group, "--json"),
    ):
        ran = await cluster.cli(*bob, *refused)
        assert (1, "PERMISSION_DENIED") == (ran.code, ran.document["error"]), (refused, ran)
    assert b"one\ntwo\n" == (await cluster.cli("read", group)).out.encode()
    assert 2 == (await cluster.cli(*bob[:2], "read", group)).code
    assert 2 == (await cluster.cli("dev", "certs", "issue", "bob", "--role", "writer")).code
    listed = (await cluster.cli("dev", "certs", "list", "--json")).document["certificates"]
    assert {("node", name) for name in cluster.nodes} <= {(one["kind"], one["name"]) for one in listed}
    admin = (await cluster.cli("dev", "certs", "issue", "root", "--role", "admin", "--json")).document
    root = [part for option in ("ca", "cert", "key") for part in (f"--tls-{option}", admin[option])]
    assert 0 == (await cluster.cli(*root, "read", group)).code
    assert 0 == (await cluster.cli("dev", "certs", "issue", "carol", "--role", "reader", "--group", group)).code
    for caller, names in ((bob, ["bob"]), (root, ["bob", "carol"])):
        shown = (await cluster.cli(*caller, "get", "loggroup", group, "--json")).out
        assert names == [name for name in ("bob", "carol") if f'"{name}"' in shown], "a client sees its own name alone"


async def test_a_cluster_keeps_whether_it_has_tls(cluster: Cluster) -> None:
    with pytest.raises(local.LocalRuntimeError, match="with TLS"):
        await local.up(cluster.directory, tls=False)


async def test_ca_and_all_certificates_are_replaced_under_load_and_no_append_fails(
    cluster: Cluster, client: tidemark.Client, tmp_path: Path
) -> None:
    group = await cluster.create_group(shards=3)
    store = cluster.runtime.certificates().files
    shutil.copytree(Path(client_of(cluster, "copied").cert).parent, tmp_path / "copy", symlinks=False)
    before, old = store.holders(), store.authorities()[-1].id
    tail = asyncio.ensure_future(_count(client, group, 400))
    async with Workload(client, group) as load:
        await load.more_on_every_shard()
        assert 0 == (await cluster.cli("dev", "certs", "rotate", timeout_s=180)).code
        await load.more_on_every_shard()
        async with await cluster.connect() as another, Workload(another, group, name="n") as more:
            leading = await cluster.leader(group)
            cluster.kill(leading)  # every link is made anew, with the new certificates
            await load.more_on_every_shard()
            await cluster.start(leading)
            await more.more_on_every_shard()
    assert 400 == await asyncio.wait_for(tail, PATIENCE_S)
    after = store.holders()
    assert old not in {authority.id for authority in store.authorities()}
    assert after.keys() == before.keys()
    assert all(after[one].leaf.certificate != before[one].leaf.certificate for one in before)
    assert all(old not in held.trusts for held in after.values())
    await check_read_back(client, load, more)
    with pytest.raises(Unavailable):  # who took a copy away needs a new one
        await cluster.connect(TlsSettings.of_directory(tmp_path / "copy"), timeout_s=3)
    async with await cluster.connect(client_of(cluster, "copied")) as again:
        assert await again.group(group)


async def _count(client: tidemark.Client, group: str, wanted: int) -> int:
    """Read as records come, over connections of any age."""
    count = 0
    async for _record in client.read(group, until=None):
        count += 1
        if count == wanted:
            break
    return count


async def test_a_rotation_does_not_wait_for_a_node_that_is_down_and_it_joins_in_when_it_is_back(
    cluster: Cluster, client: tidemark.Client
) -> None:
    group = await cluster.create_group()
    store = cluster.runtime.certificates().files
    old = store.authorities()[-1].id
    members = await cluster.members(group)
    async with Workload(client, group) as load:
        await load.more()
        cluster.kill(members[-1])
        rotating = asyncio.ensure_future(cluster.runtime.certificates().rotate())
        await load.more()
        await asyncio.wait_for(rotating, 120)
        await cluster.start(members[-1])
        await cluster.ready()
        cluster.kill(members[1])
        await load.more()  # the one that slept through it acknowledges
        await cluster.start(members[1])
    assert old not in {authority.id for authority in store.authorities()}
    await check_read_back(client, load)


async def test_a_node_that_hung_through_a_rotation_takes_up_the_new_certificates(
    cluster: Cluster, client: tidemark.Client
) -> None:
    group = await cluster.create_group()
    members = await cluster.members(group)
    async with Workload(client, group) as load:
        await load.more()
        cluster.pause(members[-1])
        await asyncio.wait_for(cluster.runtime.certificates().rotate(), 120)
        cluster.resume(members[-1])
        await cluster.ready()
        cluster.kill(members[1])
        await load.more()  # the one that hung acknowledges
        await cluster.start(members[1])
    await check_read_back(client, load)


async def test_a_rotation_goes_on_when_its_operator_is_killed(cluster: Cluster, client: tidemark.Client) -> None:
    store = cluster.runtime.certificates().files
    rotating = asyncio.ensure_future(cluster.runtime.certificates().rotate())
    await until(lambda: len(store.authorities()) == 2, "a new CA is there")
    cluster.kill("operator")
    await cluster.start("operator")
    await asyncio.wait_for(rotating, 120)
    assert 1 == len(store.authorities())
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
