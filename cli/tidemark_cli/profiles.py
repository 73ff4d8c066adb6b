"""`tidemark profile`: named clusters, where they are, the certificate to use and a default group.

Stays out: reading the file and choosing a profile (tidemark.profiles).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from tidemark import profiles
from tidemark.profiles import Profile, Profiles
from tidemark.routing import check_addresses
from tidemark_wire.profile_file import config_file
from tidemark_wire.tls import InvalidTls, TlsSettings

from .failures import USAGE, CommandFailed
from .identity import TLS_NAMES
from .options import JsonOption
from .output import emit, table

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

profile_app = typer.Typer(no_args_is_help=True, help="Named clusters: where they are, the certificate to use.")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=lambda incomplete: _names(incomplete), help="Of the profile.")]


def _names(incomplete: str) -> list[str]:
    return [name for name in profiles.load().by_name if name.startswith(incomplete)]


def document_of(profile: Profile, current: str) -> dict[str, Any]:
    """Return a profile as plain data: the files of its certificate, never what is in them."""
    tls = profile.tls
    return {
        "name": profile.name, "current": profile.name == current, "addresses": list(profile.addresses),
        "group": profile.group,
        **({"ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key), "server_name": tls.server_name}
           if tls is not None else {}),
    }


def text_of(known: Profiles) -> str:
    """Return the file that says these profiles."""
    lines = [f"current = {json.dumps(known.current)}"]
    for name in sorted(known.by_name):
        document = document_of(known.by_name[name], "")
        lines += ["", f"[profiles.{json.dumps(name)}]"]
        lines += [f"{field} = {json.dumps(document[field])}" for field in ("addresses", "group", "ca", "cert", "key",
                                                                           "server_name") if document.get(field)]
    return "\n".join(lines) + "\n"


def store(known: Profiles) -> Path:
    """Write the file: whole or not at all, for its owner alone."""
    path = config_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text_of(known))
    temporary.replace(path)
    return path


def _whole(file: Path | None) -> Path | None:
    return None if file is None else file.absolute()


@profile_app.command("list")
def list_profiles(as_json: JsonOption = False) -> None:
    """List the profiles; the current one, with a star, is used where no other cluster is meant."""
    known = profiles.load()
    found = [document_of(known.by_name[name], known.current) for name in sorted(known.by_name)]
    rows = [
        [each["name"] + ("*" if each["current"] else ""), ", ".join(each["addresses"]), each["group"],
         each.get("cert", "")] for each in found]
    emit(as_json, {"file": str(config_file()), "profiles": found},
         lambda: table(["NAME", "ADDRESSES", "GROUP", "CERTIFICATE"], rows))


@profile_app.command()
def add(
    name: NameArgument,
    addresses: Annotated[
        list[str],
        typer.Option("--address", metavar="HOST:PORT", help="The operator's Admin service, or nodes; repeatable.")],
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="Group to use where a command names none.")] = "",
    ca: Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="PEM of the CAs to trust.")] = None,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="PEM of the certificate to show.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="PEM of its key.")] = None,
    server_name: Annotated[
        str, typer.Option("--server-name", metavar="NAME", help="Name that the nodes' certificates have.")] = "",
    use: Annotated[bool, typer.Option("--use", help="Make it the current one; the first one is.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a profile, or replace the one of this name."""
    if not NAME.fullmatch(name):
        raise CommandFailed(
            f"{name!r} is not a name", "A name has 1 to 63 letters, digits, dots, dashes or underscores.", code=USAGE,
            reason="USAGE")
    try:
        tls = TlsSettings.of_parts(
            _whole(ca), _whole(cert), _whole(key), server_name, names={each: f"--{each}" for each in TLS_NAMES})
    except InvalidTls as error:
        raise CommandFailed(str(error), "Give all three, or none.", code=USAGE, reason="USAGE") from None
    known = profiles.load()
    made = Profile(name, tuple(check_addresses(",".join(addresses))), tls, group)
    current = name if use or not known.current else known.current
    path = store(Profiles(current, {**known.by_name, name: made}))
    emit(as_json, document_of(made, current), lambda: f"profile {name} is in {path}")


@profile_app.command()
def use(name: NameArgument, as_json: JsonOption = False) -> None:
    """Make a profile the current one."""
    known = profiles.load()
    profile = known.find(name)
    store(Profiles(name, known.by_name))
    emit(as_json, document_of(profile, name), lambda: f"{name} is the current profile")


@profile_app.command()
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a profile; the cluster stays as it is."""
    known = profiles.load()
    known.find(name)
    left = {each: profile for each, profile in known.by_name.items() if each != name}
    store(Profiles("" if known.current == name else known.current, left))
    emit(as_json, {"removed": name}, lambda: f"profile {name} removed")
