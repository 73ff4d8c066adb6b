"""Requests to an API server: who asks is said, and again when the token of the pod was renewed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from tidemark_operator.kube.api import PODS, KubeApi, load_user_configuration
from tidemark_operator.kube.check import check
from tidemark_operator.kube.handlers import settings
from tidemark_operator.kube.informers import RETRY_MAX_S


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers with an empty list: its address, and what it was told of who asks."""
    told: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        told.append(request.headers.get("authorization", ""))
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    app = web.Application()
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no shards for you"}, status=403)

    app.router.add_get("/apis/tidemark.dev/v1alpha1/namespaces/data/shards", refuse)
    app.router.add_get("/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}", told
    await runner.cleanup()


async def asked(configuration: Configuration, times: int) -> None:
    api = KubeApi(configuration)
    for _ in range(times):
        await api.list(PODS, "data")
    await api.close()


async def test_the_token_is_sent_and_renewed(server: tuple[str, list[str]]) -> None:
    url, told = server
    tokens = iter(["first", "second"])

    def renew(configuration: Configuration) -> None:  # what load_incluster_config sets, which reads the mounted file
        configuration.api_key["BearerToken"] = f"bearer {next(tokens)}"

    configuration = Configuration(host=url)
    configuration.api_key["BearerToken"] = "bearer of the start"
    configuration.refresh_api_key_hook = renew
    await asked(configuration, 2)
    assert told == ["bearer first", "bearer second"]


async def test_the_token_of_a_kubeconfig_is_sent(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, told = server
    user = {"token": "of a person"}
    program = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [
        "-c", """echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                        "status": {"token": "of a program"}}'"""]}}
    for who in (user, program):
        file = tmp_path / "config"
        file.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it", "users": [{"name": "it", "user": who}],
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}))
        configuration, _namespace = await load_user_configuration(str(file), "")
        await asked(configuration, 1)
    assert told == ["Bearer of a person", "Bearer of a program"]


async def test_without_a_token_none_is_sent(server: tuple[str, list[str]]) -> None:
    url, told = server
    await asked(Configuration(host=url), 1)
    assert told == [""]


async def test_a_check_names_what_may_not_be_read(server: tuple[str, list[str]]) -> None:
    url, told = server
    assert await check(Configuration(host=url), ["data"]) == ["shards of data: no shards for you"]
    assert await check(Configuration(host=url), ["other"]) == []
    assert len(told) > 10


def test_specs_are_heard_of_again_as_soon_as_anything_else_after_an_outage() -> None:
    pauses = settings().networking.error_backoffs
    assert isinstance(pauses, tuple) and max(pauses) <= RETRY_MAX_S
