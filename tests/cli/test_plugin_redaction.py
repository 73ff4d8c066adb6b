"""What is left out of a report."""

from __future__ import annotations

import pytest
from tidemark_cli.kubectl.redaction import HIDDEN, document, text


@pytest.mark.parametrize(("said", "left"), [
    ("password=hunter2 next", f"password={HIDDEN} next"),
    ('{"client_secret": "hunter2", "shard": 3}', f'{{"client_secret": "{HIDDEN}", "shard": 3}}'),
    ("API_KEY: hunter2", f"API_KEY: {HIDDEN}"),
    ("Authorization: Bearer hunter2", f"Authorization: Bearer {HIDDEN}"),
    ("https://admin:hunter2@etcd:2379", f"https://admin:{HIDDEN}@etcd:2379"),
    ("a -----BEGIN EC " + "PRIVATE KEY-----\nhunter2\n-----END EC " + "PRIVATE KEY----- b", f"a {HIDDEN} b"),
    ("-----BEGIN " + "PRIVATE KEY-----\nhunter2 cut off", HIDDEN),
])
def test_secrets_in_texts(said: str, left: str):
    assert text(said) == left


@pytest.mark.parametrize("said", [
    "shard orders/7 has epoch 14", "secret prod-1-tls is mounted", "http://etcd:2379/v3", "token bucket is empty",
    "keyPrefix: /tidemark/data/prod"])
def test_what_is_no_secret_stays(said: str):
    assert text(said) == said


def test_secrets_in_objects():
    found = {
        "metadata": {"name": "prod-1", "managedFields": [{"manager": "x"}], "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "core"}},
        "spec": {
            "password": "hunter2", "tlsSecretRef": {"name": "prod-etcd"}, "volumes": [{"secret": {"secretName": "it"}}],
            "env": [{"name": "API_TOKEN", "value": "hunter2"}, {"name": "ZONE", "value": "a"},
                    {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "it", "key": "x"}}}], "replicas": 3}}
    kept = document(found)
    assert "hunter2" not in str(kept)
    assert kept["metadata"] == {"name": "prod-1", "annotations": {"team": "core"}}
    assert kept["spec"]["env"][1:] == found["spec"]["env"][1:]
    assert (kept["spec"]["tlsSecretRef"], kept["spec"]["replicas"]) == ({"name": "prod-etcd"}, 3)
