"""`python -m tidemark_operator`: flags, signals, start and end of one operator process.

Stays out: the work (`service`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop
from tidemark_wire import descriptors, extras
from tidemark_wire.channel import bind, server_options
from tidemark_wire.tls import FileCredentials, InvalidTls, TlsSettings

from .admin import add_admin
from .certificate_tending import FileArchive
from .certificates.files import CertificateFiles
from .etcd_access import TlsFiles
from .kube.builders import IMAGE
from .log_format import JsonFormatter
from .service import OperatorService

log = logging.getLogger("tidemark_operator")

EXIT_BAD_START, EXIT_BUG = 2, 70
DAY_S, YEAR_S = 86_400, 31_536_000
CALLS_MAX = 1_024
"""Calls of the Admin service at once; more are refused with RESOURCE_EXHAUSTED."""
REQUEST_BYTES_MAX = 1 << 20
"""Of one call: gRPC takes in a request before its handler runs (T12b)."""


def parse_flags(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidemark_operator", description="Runs one Tidemark cluster.")
    parser.add_argument(
        "--etcd", action="append", metavar="URL", help="etcd endpoint; may be repeated")
    parser.add_argument("--etcd-ca", type=Path, metavar="FILE", help="PEM of the CA of https endpoints")
    parser.add_argument("--etcd-cert", type=Path, metavar="FILE", help="PEM of our certificate, for mutual TLS")
    parser.add_argument("--etcd-key", type=Path, metavar="FILE", help="PEM of its key")
    parser.add_argument("--cluster", help="name of the TidemarkCluster this operator runs")
    parser.add_argument("--key-prefix", help="where in etcd; default /tidemark/default/<cluster>")
    parser.add_argument(
        "--listen", type=_address, default="127.0.0.1:0", help="host:port of the Admin service; port 0 picks one")
    parser.add_argument("--ready-file", type=Path, help="written once the Admin service answers")
    parser.add_argument("--nodes-dir", type=Path, help="directory of the nodes' ready files")
    parser.add_argument("--lease-ttl", type=_lease_ttl, default=3, metavar="SECONDS", help="of the activity lease")
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR",
        help="tls.crt, tls.key and ca.crt of this operator: nobody gets in without mutual TLS")
    parser.add_argument(
        "--certificates-dir", type=Path, metavar="DIR", help="the cluster's CA and certificates, kept by this operator")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--log-format", default="text", choices=["text", "json"])
    kubernetes = parser.add_argument_group(
        "on Kubernetes", "Takes the clusters from their custom resources, and where their etcd is too.")
    kubernetes.add_argument("--kubernetes", action="store_true", help="run the clusters of some namespaces")
    kubernetes.add_argument(
        "--namespace", action="append", metavar="NAME", help="may be repeated; default: that of the operator's pod")
    kubernetes.add_argument("--all-namespaces", action="store_true", help="instead: run those of every namespace")
    kubernetes.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: the file in KUBECONFIG, else as a pod of the cluster")
    kubernetes.add_argument(
        "--node-image", metavar="REPOSITORY", default=IMAGE,
        help="where the image of nodes comes from, its tag is the cluster's version; default: %(default)s")
    kubernetes.add_argument(
        "--allowed-image", action="append", default=[], metavar="IMAGE",
        help="what spec.image of a cluster may name besides that: a repository, one image with its tag or digest, a "
        "beginning that ends with a slash, or *; may be repeated")
    kubernetes.add_argument(
        "--check", action="store_true",
        help="only see whether the API server lets an operator with these flags read what it follows; 1 if not")
    kubernetes.add_argument(
        "--ca-overlap", type=_seconds, default=DAY_S, metavar="SECONDS",
        help="how long two CAs are trusted while one replaces the other, for copies of certificates that nobody "
        "reports on; default a day")
    kubernetes.add_argument(
        "--http-listen", type=_address, default="0.0.0.0:8080", metavar="HOST:PORT",
        help="of /livez, /readyz and /metrics; default: %(default)s")
    flags = parser.parse_args(arguments)
    if flags.kubernetes:
        if flags.etcd or flags.cluster:
            parser.error("--kubernetes takes clusters and their etcd from the custom resources, not from flags")
        if flags.all_namespaces and flags.namespace:
            parser.error("--all-namespaces and --namespace exclude each other")
        if flags.kubeconfig is None and os.environ.get("KUBECONFIG"):
            flags.kubeconfig = Path(os.environ["KUBECONFIG"])
        return flags
    if not flags.etcd or not flags.cluster:
        parser.error("the following arguments are required: --etcd, --cluster (or --kubernetes)")
    if bool(flags.etcd_cert) != bool(flags.etcd_key) or (flags.etcd_cert and not flags.etcd_ca):
        parser.error("--etcd-cert and --etcd-key go together, and with --etcd-ca")
    if flags.certificates_dir and not flags.tls_dir:
        parser.error("--certificates-dir goes with --tls-dir")
    flags.key_prefix = flags.key_prefix or f"/tidemark/default/{flags.cluster}"
    return flags


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return text


def _seconds(text: str) -> int:
    if not text.isdecimal() or int(text) > YEAR_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds up to {YEAR_S}")
    return int(text)


def _lease_ttl(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds between 1 and 3600")
    return int(text)


def read_tls(flags: argparse.Namespace) -> TlsFiles | None:
    """Read the PEM files for etcd.  Raises OSError that names the file."""
    if flags.etcd_ca is None:
        return None
    certificate, key = (path.read_bytes() if path else None for path in (flags.etcd_cert, flags.etcd_key))
    return TlsFiles(flags.etcd_ca.read_bytes(), certificate, key)


async def run(flags: argparse.Namespace) -> int:
    """Run until a signal or a bug; return the exit code."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _end_on_signals_and_bugs(ended)
    if flags.kubernetes:
        with extras.needs("operator"):
            from .kube.main import run as run_on_kubernetes  # its libraries are large, and the local runtime needs none

        return await run_on_kubernetes(flags, ended)
    tls = FileCredentials(TlsSettings.of_directory(flags.tls_dir)) if flags.tls_dir else None
    service = OperatorService(
        flags.etcd, flags.key_prefix, flags.cluster, etcd_tls=read_tls(flags), nodes_directory=flags.nodes_dir,
        lease_ttl_s=flags.lease_ttl, tls=tls,
        certificates=(
            FileArchive(CertificateFiles(flags.certificates_dir, flags.cluster)) if flags.certificates_dir else None))
    options = server_options(
        descriptors.connections_max(descriptors.raise_limit()), request_bytes_max=REQUEST_BYTES_MAX)
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
    add_admin(server, service)
    try:
        port = bind(server, flags.listen, tls)
    except RuntimeError:
        log.critical("cannot listen on %s: is it an address of this machine, and the port free?", flags.listen)
        return EXIT_BAD_START
    await service.start()
    await server.start()
    host = flags.listen.rpartition(":")[0]
    address = f"{host}:{port}"
    log.info("operator %s of cluster %s answers at %s, %s", service.operator, flags.cluster, address,
        "mutual TLS" if tls is not None else "insecure")
    if flags.ready_file is not None:
        write_ready_file(flags.ready_file, {
            "operator": service.operator, "cluster": flags.cluster, "address": address, "pid": os.getpid()})
    code = await ended
    await server.stop(grace=0.2)
    await service.stop()
    return code


def write_ready_file(path: Path, content: dict[str, Any]) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)


def _end_on_signals_and_bugs(ended: asyncio.Future[int]) -> None:
    loop = asyncio.get_running_loop()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.critical("%s", context.get("message"), exc_info=error)
        if isinstance(error, AssertionError) or "task" in context:
            end(EXIT_BUG)  # an invariant does not hold, or a part of the operator is gone: start afresh

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    loop.set_exception_handler(failed)


def _start_logging(flags: argparse.Namespace) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if flags.log_format == "json" else logging.Formatter(
        "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=flags.log_level.upper(), handlers=[handler])


def main() -> None:
    if not __debug__:
        sys.exit("tidemark_operator does not run under -O: its invariants are asserts")
    flags = parse_flags()
    _start_logging(flags)
    try:
        sys.exit(uvloop.run(run(flags)))
    except (ValueError, OSError, InvalidTls) as error:
        print(f"tidemark_operator: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_START)


if __name__ == "__main__":
    main()
