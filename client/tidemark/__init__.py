"""Tidemark's client: append to log groups and read them back.

    client = await tidemark.connect("127.0.0.1:6690")
    async with client, client.appender("orders") as appender:
        place = await appender.append(b"...", key=b"customer-7")
    async for record in client.read("orders"):
        ...

`tidemark.sync` is the same without an event loop; `tidemark.errors` is what may be caught.
"""

from tidemark_core.base.entry import Durability

from . import errors
from .appender import Appender
from .batch import SCHEMA, Appended, ReadBatch, Record
from .client import Client, connect
from .cursor import EARLIEST, LATEST
from .errors import TidemarkError
from .loop import run
from .pending import AppendedBatch
from .reader import Reader

QUORUM = Durability.QUORUM
LOCAL = Durability.LOCAL

__all__ = [
    "EARLIEST", "LATEST", "LOCAL", "QUORUM", "SCHEMA", "Appended", "AppendedBatch", "Appender", "Client",
    "Durability", "ReadBatch", "Reader", "Record", "TidemarkError", "connect", "errors", "run",
]
