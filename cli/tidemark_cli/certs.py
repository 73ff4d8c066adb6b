"""`tidemark dev certs`: certificates of a local cluster with TLS: who holds one, issue one, replace them all.

Stays out: making certificates and deciding what comes next (operator).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
import yaml
from tidemark_operator import local
from tidemark_wire.identity import NAME, Kind
from tidemark_wire.tls import CA_FILE, CERT_FILE, KEY_FILE

from . import target
from .failures import USAGE, CommandFailed
from .options import DEFAULT_DIR, DirOption, JsonOption
from .output import emit, note, stderr, table

certs_app = typer.Typer(no_args_is_help=True, help="Certificates of a local cluster that was started with --tls.")


MADE_BY_OPERATOR = frozenset({"uid", "generation", "creationTimestamp"})


class RoleChoice(StrEnum):
    """Roles, as a person names them."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


RolesOption = Annotated[
    list[RoleChoice] | None,
    typer.Option("--role", help="What it may do with --group; `admin` without a group is an admin of the cluster. "
                                "May be repeated."),
]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Log group to give the roles in; may be repeated.")
]


@certs_app.command("list")
def list_certificates(state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Show who holds a certificate, until when, and where it is."""

    async def main() -> list[dict[str, Any]]:
        certificates = (await local.attach(state)).certificates()
        return [
            {
                "kind": str(identity.kind), "name": identity.name,
                "expires": f"{held.facts.expires:%Y-%m-%dT%H:%M:%SZ}",
                "issuer": held.facts.issuer[:16], "directory": str(certificates.files.folder(identity)),
            }
            for identity, held in certificates.files.holders().items()
        ]

    found = tidemark.run(main())
    columns = ["kind", "name", "expires", "issuer", "directory"]
    emit(as_json, {"certificates": found}, lambda: table(
        [column.upper() for column in columns], [[one[column] for column in columns] for one in found]))


@certs_app.command()
def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client: letters, digits, '.', '_', '-'.")],
    roles: RolesOption = None,
    groups: GroupsOption = None,
    state: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Issue a certificate, and add its name to the access lists of log groups.

    A group without access lists lets every client read and append; the first name in a list shuts the others out.
    """
    kind, given = _what_is_asked(name, roles or [], groups or [])

    async def main() -> Path:
        runtime = await local.attach(state)
        certificates = runtime.certificates()
        async with target.admin(state, None) as service:
            objects = [(await service.get("LogGroup", group))[0] for group in groups or []]
            for item in objects:
                if item["spec"].get("access") is None:
                    note(f"log group {item['metadata']['name']} was open to every client; now it is to those it names")
                await service.apply(yaml.safe_dump(with_access(item, given, name)))
        return certificates.issue(await runtime.policy(), kind, name)

    folder = tidemark.run(main())
    files = {"ca": CA_FILE, "cert": CERT_FILE, "key": KEY_FILE}
    document = {
        "kind": str(kind), "name": name, "roles": [str(role) for role in given], "groups": groups or [],
        **{option: str(folder / file) for option, file in files.items()},
    }
    options = " ".join(f"--tls-{option} {folder / file}" for option, file in files.items())
    emit(as_json, document, lambda: f"{kind} {name}: {folder}\nuse it as in: tidemark {options} ...")


@certs_app.command()
def rotate(state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Replace the CA and every certificate while the cluster goes on, and wait until nothing of the old CA is left."""

    async def main() -> str:
        certificates = (await local.attach(state)).certificates()
        await certificates.rotate()
        return certificates.files.authorities()[-1].id

    with stderr.status("rotating"):
        authority = tidemark.run(main())
    emit(as_json, {"authority": authority}, lambda: f"the CA is {authority[:16]} now, and every certificate is new")


def _what_is_asked(name: str, roles: list[RoleChoice], groups: list[str]) -> tuple[Kind, list[RoleChoice]]:
    """Return what is to be issued and the roles to give in the groups; raises CommandFailed."""
    if not NAME.fullmatch(name):
        raise CommandFailed(
            f"{name!r} is not a name", "A name has 1 to 63 letters, digits, dots, dashes or underscores.", code=USAGE,
            reason="USAGE")
    if roles == [RoleChoice.ADMIN] and not groups:
        return Kind.ADMIN, []
    if bool(roles) != bool(groups):
        raise CommandFailed(
            "--role and --group go together", "For example --role writer --group orders.", code=USAGE, reason="USAGE")
    return Kind.CLIENT, roles


def with_access(item: dict[str, Any], roles: list[RoleChoice], name: str) -> dict[str, Any]:
    """Return the manifest of a log group with a name added to the lists of these roles."""
    access = dict(item["spec"].get("access") or {})
    for role in roles:
        names = list(access.get(f"{role}s") or [])
        access[f"{role}s"] = names if name in names else [*names, name]
    manifest = {key: value for key, value in item.items() if key != "status"}
    manifest["metadata"] = {key: value for key, value in item["metadata"].items() if key not in MADE_BY_OPERATOR}
    return {**manifest, "spec": {**item["spec"], "access": access}}
