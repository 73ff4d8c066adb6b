"""`tidemark recover-metadata`: what etcd lost or had set back is rebuilt from what nodes persisted.

A local cluster is found by its folder; anywhere else nodes and etcd are named.  Stays out: the plan and its writing
(the operator's recovery).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
from rich.console import Group
from rich.text import Text
from tidemark_operator import local
from tidemark_operator.etcd import EtcdStore, StoreUnavailable
from tidemark_operator.etcd_access import Login, TlsFiles
from tidemark_operator.metadata import Keys
from tidemark_operator.recovery import Address, RecoveryRefused, ask_nodes, ask_promises, carry_out, look
from tidemark_operator.recovery_plan import Asked, NodeAnswer, RecoveryPlan, SilentNode
from tidemark_operator.resources import InvalidManifest, Resource, load_manifests
from tidemark_wire.tls import Credentials, FileCredentials

from . import target
from .failures import FAILED, UNAVAILABLE, USAGE, CommandFailed
from .identity import given_tls
from .options import DEFAULT_DIR, DirOption, JsonOption, TimeoutOption
from .output import emit, note, progress, stderr, table
from .views import read_manifests

SHARD = re.compile(r"(?P<group>[^/]+)/(?P<index>[0-9]{1,6})")
NAME = re.compile(r"(?P<number>[0-9]{1,9})=(?P<name>[^/=]+)")

FilesOption = Annotated[
    list[str] | None,
    typer.Option("-f", "--file", metavar="FILE", help="Manifests of the log groups; may be repeated."),
]
NodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes", metavar="[POOL=]HOST:PORT",
        help="A node, with its pool unless that is `default`; name every node of the cluster, also those that are "
             "down. May be repeated.",
    ),
]
EtcdOption = Annotated[
    list[str] | None, typer.Option("--etcd", metavar="URL", help="An endpoint of the etcd to write; may be repeated.")
]
PrefixOption = Annotated[
    str | None, typer.Option("--key-prefix", help="Where in etcd; default /tidemark/default/NAME.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the TidemarkCluster; with --etcd and --nodes.")]
EtcdCaOption = Annotated[
    Path | None, typer.Option("--etcd-ca", metavar="FILE", help="PEM of the CA of https endpoints.")]
EtcdCertOption = Annotated[
    Path | None, typer.Option("--etcd-cert", metavar="FILE", help="PEM of our certificate for etcd.")]
EtcdKeyOption = Annotated[Path | None, typer.Option("--etcd-key", metavar="FILE", help="PEM of its key.")]
EtcdUserOption = Annotated[str | None, typer.Option("--etcd-user", metavar="NAME", help="User of etcd.")]
EtcdPasswordOption = Annotated[
    Path | None, typer.Option("--etcd-password-file", metavar="FILE", help="File that holds the user's password.")]
MergeOption = Annotated[
    bool,
    typer.Option("--merge", help="The key prefix holds a restored backup: keep what is not behind the nodes."),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="ID=NAME", help="Name of a group that no node remembers; may be repeated."),
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss", metavar="GROUP/SHARD",
        help="Go on with the copies that answered though acknowledged records may be lost; may be repeated.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and write nothing.")]


def recover_metadata(
    files: FilesOption = None,
    nodes: NodesOption = None,
    etcd: EtcdOption = None,
    name: NameOption = None,
    key_prefix: PrefixOption = None,
    etcd_ca: EtcdCaOption = None,
    etcd_cert: EtcdCertOption = None,
    etcd_key: EtcdKeyOption = None,
    etcd_user: EtcdUserOption = None,
    etcd_password_file: EtcdPasswordOption = None,
    merge: MergeOption = False,
    groups: GroupsOption = None,
    accept_loss: AcceptOption = None,
    dry_run: DryRunOption = False,
    timeout: TimeoutOption = 10.0,
    state: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the metadata in etcd from what the nodes persisted, after etcd was lost or an old backup restored.

    Stop every operator first. Without --nodes and --etcd it is the local cluster in --dir.
    """
    manifests = _manifests(files or [])
    names = dict(_pair(NAME, text, "--group", "ID=NAME") for text in groups or [])
    accepted = {(group, int(index)) for group, index in (
        _pair(SHARD, text, "--accept-loss", "GROUP/SHARD") for text in accept_loss or [])}
    if bool(etcd_user) != bool(etcd_password_file):
        raise _usage("--etcd-user and --etcd-password-file go together", "Give both, or none.")
    login = Login(etcd_user, _password(etcd_password_file)) if etcd_user and etcd_password_file else None
    where = _given(nodes, etcd, name, key_prefix, (etcd_ca, etcd_cert, etcd_key))
    if login and where is None:
        raise _usage("--etcd-user goes with --etcd", "A local cluster's etcd has no users.")

    async def main() -> RecoveryPlan:
        place = where or await _local(state)
        asked = Asked(place.cluster, manifests, {int(number): text for number, text in names.items()}, accepted)
        try:
            store = EtcdStore(place.etcd, tls=place.etcd_tls, login=login, timeout_ms=5_000)
        except ValueError as error:
            raise _usage(str(error), "For example --etcd http://127.0.0.1:2379.") from None
        try:
            async def plan_of(answers: list[NodeAnswer], silent: list[SilentNode]) -> RecoveryPlan:
                plan, _ = await look(store, place.keys, answers, silent, asked, merge=merge)
                return plan

            tell = (lambda line: None) if as_json else note
            with stderr.status("asking nodes"):
                plan = await plan_of(*await ask_nodes(place.nodes, place.tls, timeout, tell))
            if plan.problems or dry_run:
                return plan
            with stderr.status("asking nodes for promises"):
                answers, silent = await ask_promises(plan, place.nodes, place.tls, timeout, plan_of, tell)
                plan = await plan_of(answers, silent)
            if plan.problems:
                return plan
            with progress() as bar:
                task = bar.add_task("writing", total=len(plan.writes))
                return await carry_out(
                    store, place.keys, answers, silent, asked, merge=merge,
                    progress=lambda done, total: bar.update(task, completed=done, total=total))
        except StoreUnavailable as error:
            raise CommandFailed(
                f"etcd does not answer: {error}", "Start an etcd at that address first; an empty one will do.",
                code=UNAVAILABLE, reason="METADATA_UNAVAILABLE") from error
        except RecoveryRefused as error:
            raise CommandFailed(str(error), error.advice, reason="RECOVERY_REFUSED") from error
        finally:
            await store.close()

    plan = tidemark.run(main())
    written = not plan.problems and not dry_run
    emit(as_json, _document(plan, written), lambda: _tables(plan, written))
    if plan.problems:
        for problem in plan.problems:
            stderr.print(Text.assemble(("problem:", "red"), f" {problem}"), soft_wrap=True)
        raise typer.Exit(FAILED)
    if not as_json:
        for line in plan.notes:
            note(line)


@dataclass(frozen=True, slots=True)
class _Place:
    """Whom to ask and where to write."""

    cluster: str
    nodes: list[Address]
    etcd: list[str]
    keys: Keys
    tls: Credentials | None
    etcd_tls: TlsFiles | None


def _given(
    nodes: list[str] | None, etcd: list[str] | None, name: str | None, prefix: str | None,
    pem: tuple[Path | None, Path | None, Path | None],
) -> _Place | None:
    """Return the cluster that was named; None when none was."""
    if not (nodes or etcd or name or prefix or any(pem)):
        return None
    if not (nodes and etcd and name):
        raise _usage("--nodes, --etcd and --name go together", "Leave all three away for the local cluster.")
    ca, cert, key = pem
    if bool(cert) != bool(key) or (cert and not ca):
        raise _usage("--etcd-cert and --etcd-key go together, and with --etcd-ca", "Give all, or --etcd-ca alone.")
    addresses = []
    for text in nodes:
        pool, given, address = text.rpartition("=")
        target.check_cluster(address, "--nodes")
        addresses.append(Address(address, pool if given else "default"))
    etcd_tls = TlsFiles(ca.read_bytes(), *(file.read_bytes() if file else None for file in (cert, key))) if ca else None
    tls = given_tls()
    try:
        keys = Keys(prefix or f"/tidemark/default/{name}")
    except ValueError as error:
        raise _usage(str(error), "For example --key-prefix /tidemark/default/main.") from None
    return _Place(name, addresses, etcd, keys, FileCredentials(tls) if tls else None, etcd_tls)


async def _local(state: Path) -> _Place:
    runtime = await local.attach(state)
    seen = {view.name: view.state for view in runtime.status()}
    if seen["operator"] != "Stopped":
        raise CommandFailed(
            "the operator of the local cluster runs", "Stop it first with `tidemark dev stop operator`.",
            reason="RECOVERY_REFUSED")
    addresses = [Address(address) for address in runtime.node_addresses().values()]
    return _Place(
        runtime.cluster, addresses, [runtime.state.etcd_url], runtime.keys(), runtime.credentials(),
        runtime.etcd_tls())


def _password(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise _usage(f"--etcd-password-file: {file} is not UTF-8 text", "It holds the password alone.") from None


def _manifests(files: list[str]) -> list[Resource]:
    try:
        return [item for file in files for item in load_manifests(read_manifests(file), file)]
    except InvalidManifest as error:
        raise CommandFailed(str(error), "Fix the field named above.", code=USAGE, reason="INVALID_SPEC") from None


def _pair(pattern: re.Pattern[str], text: str, option: str, shape: str) -> tuple[str, str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise _usage(f"{option}: {text!r} is not {shape}", f"For example {option} {_EXAMPLES[option]}.")
    first, second = found.groups()
    return first, second


_EXAMPLES = {"--group": "3=orders", "--accept-loss": "orders/0"}


def _usage(message: str, advice: str) -> CommandFailed:
    return CommandFailed(message, advice, code=USAGE, reason="USAGE")


def _document(plan: RecoveryPlan, written: bool) -> dict[str, Any]:
    return {
        "written": written,
        "shards": [asdict(line) for line in plan.shards],
        "groups": [asdict(line) for line in plan.groups],
        "silent": list(plan.silent),
        "counters": dict(plan.counters),
        "keys": len(plan.writes),
        "problems": list(plan.problems),
        "notes": list(plan.notes),
    }


def _tables(plan: RecoveryPlan, written: bool) -> Group:
    done = f"{len(plan.writes)} keys " + ("written" if written else "to write")
    return Group(
        table(["GROUP", "#ID", "#SHARDS", "ACTION"],
              [[line.name, line.group_id, line.shards, line.action] for line in plan.groups]),
        "",
        table(["SHARD", "ACTION", "#EPOCH", "ENSEMBLE", "DOUBT", "NOTE"], [
            [
                f"{line.group}/{line.index}", line.action, line.epoch or "", " ".join(line.ensemble), line.doubt,
                line.note,
            ] for line in plan.shards]),
        "",
        done,
    )
