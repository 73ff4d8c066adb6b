"""A relay that passes messages between clients and keeps all it knows in five keyspaces.

    tidemark dev up -f examples/dev-cluster.yaml -f examples/relay-keyspaces.yaml
    python examples/keyspaces.py HOST:PORT

| keyspace            | key                 | value                                   |
|---------------------|---------------------|-----------------------------------------|
| unaddressed-mailbox | topic               | Set of messages without a recipient     |
| mailbox             | recipient and topic | Map of messages by their ids            |
| routing-table       | topic               | Set of clients and their relays         |
| client-project      | client              | String: the project of the client       |
| project-data        | project             | String: what is known of it, or an error |
"""

import json
import sys
from collections.abc import Iterator

import tidemark.sync
from tidemark import errors


def text(value: object) -> bytes:
    """Return the same bytes for equal values: a Set keeps equal members once."""
    return json.dumps(value, sort_keys=True).encode()


class Relay:
    """One relay at an address.  Any number of them share the keyspaces, and none leads.

    A write that raises WriteUnknown may be repeated: each of these ends the same.
    """

    def __init__(self, client: tidemark.sync.SyncClient, address: str) -> None:
        self.address = address
        self.unaddressed = client.keyspace("unaddressed-mailbox")
        self.mailbox = client.keyspace("mailbox")
        self.routes = client.keyspace("routing-table")
        self.projects = client.keyspace("client-project")
        self.project_data = client.keyspace("project-data")

    def register(self, client_id: str, project_id: str) -> None:
        """Note the project of a client: the last write wins."""
        self.projects.set(client_id.encode(), project_id.encode())

    def subscribe(self, client_id: str, topic: str) -> None:
        """Route a topic to a client here, and give it the messages that found no subscriber."""
        self.routes.sadd(topic.encode(), text({"client": client_id, "relay": self.address}))
        self._take_over(client_id, topic)

    def unsubscribe(self, client_id: str, topic: str) -> None:
        self.routes.srem(topic.encode(), text({"client": client_id, "relay": self.address}))

    def publish(self, topic: str, message_id: int, body: str, ttl_s: float) -> int:
        """Put a message into the mailbox of each subscriber, else into that of the topic; return how many there are.

        A member of a Set has at most 1,024 bytes: longer messages go to a Map, whose values have up to 1 MiB.
        """
        message = {"id": message_id, "body": body}
        subscribers = self._subscribers(topic)
        for each in subscribers:
            self._deliver(each, topic, message, ttl_s)
        if not subscribers:
            self.unaddressed.sadd(topic.encode(), text(message), ttl_s=ttl_s)
            # Both sides write and then read, and reads meet the writes before them: one of the two sees the other.
            for each in self._subscribers(topic):
                self._take_over(each, topic)
        return len(subscribers)

    def fetch(self, client_id: str, topic: str) -> Iterator[dict[str, object]]:
        """Return the messages that wait for a client, in the order of their ids."""
        for _, value in self.mailbox.hgetall(self._box(client_id, topic)):
            yield json.loads(value)

    def acknowledge(self, client_id: str, topic: str, message_id: int) -> None:
        """Remove one message: a field is written and removed without a look at the others."""
        self.mailbox.hdel(self._box(client_id, topic), self._field(message_id))

    def project_of(self, client_id: str) -> dict[str, object]:
        """Return what is known of a client's project, from the cache where it has that."""
        found = self.projects.get(client_id.encode())
        if found.value is None:
            return {"error": "unknown client"}
        cached = self.project_data.get(found.value)
        if cached.value is None:
            data = look_up(found.value.decode())
            # An error is kept too, and not for long: a project that is missing is asked for often.
            self.project_data.set(found.value, text(data), ttl_s=60 if "error" in data else None)
            return data
        return {**json.loads(cached.value), "cached": True}

    def _subscribers(self, topic: str) -> list[str]:
        return [json.loads(route)["client"] for route in self.routes.smembers(topic.encode())]

    def _take_over(self, client_id: str, topic: str) -> None:
        for member in self.unaddressed.smembers(topic.encode()):
            self._deliver(client_id, topic, json.loads(member))
            self.unaddressed.srem(topic.encode(), member)   # once the message is safe in the mailbox

    def _deliver(self, client_id: str, topic: str, message: dict[str, object], ttl_s: float | None = None) -> None:
        box, field = self._box(client_id, topic), self._field(message["id"])
        self.mailbox.hset(box, field, text(message), ttl_s=ttl_s)

    @staticmethod
    def _box(client_id: str, topic: str) -> bytes:
        return text([client_id, topic])     # one key of two parts, whatever letters they have

    @staticmethod
    def _field(message_id: object) -> bytes:
        return b"%020d" % message_id        # fields come in the order of their bytes


def look_up(project_id: str) -> dict[str, object]:
    """Return what the registry of projects says; here it knows one."""
    return {"name": "weather", "enabled": True} if project_id == "p-1" else {"error": "no such project"}


def main(address: str) -> None:
    with tidemark.sync.connect(address) as client:
        here, there = Relay(client, "127.0.0.1:8080"), Relay(client, "127.0.0.1:8081")
        try:
            here.register("ann", "p-1")
            here.register("bob", "p-2")
            for _ in range(2):
                print("projects:", there.project_of("ann"), there.project_of("bob"), there.project_of("eve"))

            for _ in range(2):      # the producer repeats itself, and the Set keeps it once
                print(here.publish("storms", 1, "wind", ttl_s=3600), "subscribers: the message waits for one")
            there.subscribe("ann", "storms")
            print(here.publish("storms", 2, "rain", ttl_s=3600), "subscriber")
            print("ann has", [each["body"] for each in here.fetch("ann", "storms")])

            here.acknowledge("ann", "storms", 1)
            print("then", [each["body"] for each in here.fetch("ann", "storms")])
            there.unsubscribe("ann", "storms")
            print("routes:", here.routes.smembers(b"storms").all(), "unaddressed:",
                  here.unaddressed.smembers(b"storms").all())
            here.acknowledge("ann", "storms", 2)

            print("projects of", sorted(key.decode() for key, _ in here.projects.scan()))
        except errors.TidemarkError as error:
            sys.exit(f"{error}. {error.advice}")


if __name__ == "__main__":
    main(*sys.argv[1:])
