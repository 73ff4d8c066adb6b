"""EtcdAccess: how an etcd is spoken to: in the clear or with TLS, and with the token that a password is traded for.

Stays out: requests (`etcd`), where passwords and certificates come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from aetcd import rpc

LOGIN_AGAIN_S = 2.0
"""Trading a password costs etcd much: one that was turned down is not offered again before."""

_TOKEN_TURNED_DOWN = ("invalid auth token", "user name is empty", "auth revision", "auth store")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM contents for https endpoints."""

    ca: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd."""

    user: str
    password: str = field(repr=False)


class EtcdAccess:
    """One set of credentials."""

    def __init__(self, tls: TlsFiles | None = None, login: Login | None = None) -> None:
        self.tls = tls
        self.login = login
        self._token = ""
        self._turned_down: grpc.aio.AioRpcError | None = None
        self._turned_down_at = 0.0

    def _sign(self, context: Any, callback: Callable[[Any, Any], None]) -> None:
        """Give gRPC the token of a call; it asks from threads of its own."""
        callback((("token", self._token),) if self._token else (), None)

    def open(self, target: str, secure: bool, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """Return a channel to `target`; a token is sent over TLS only."""
        if not secure:
            return grpc.aio.insecure_channel(target, options=options)
        assert self.tls is not None
        credentials = grpc.ssl_channel_credentials(self.tls.ca, self.tls.key, self.tls.certificate)
        if self.login is not None:
            sign: Any = self._sign  # the stubs name a class where a function will do
            credentials = grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(sign))
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def log_in(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        """Have a token where one is needed.  Raises grpc.aio.AioRpcError."""
        if self.login is None or self._token:
            return
        if self._turned_down is not None and time.monotonic() - self._turned_down_at < LOGIN_AGAIN_S:
            raise self._turned_down
        request = rpc.AuthenticateRequest(name=self.login.user, password=self.login.password)
        try:
            self._token = (await rpc.AuthStub(channel).Authenticate(request, timeout=timeout_s)).token
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._turned_down, self._turned_down_at = error, time.monotonic()
            raise

    def turned_down(self, why: str) -> bool:
        """Say whether the token was to blame, which is forgotten then: tokens end."""
        if not self._token or not any(text in why for text in _TOKEN_TURNED_DOWN):
            return False
        self._token = ""
        return True
