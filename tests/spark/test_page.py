"""The page on Spark and the manifest of a driver, against the options that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pyspark_tidemark.options import OPTIONS, Options, check_use

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "spark.md").read_text(encoding="utf-8")
DRIVER = REPOSITORY / "examples" / "kubernetes" / "spark" / "driver.yaml"

OF_KAFKA = {
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "groupIdPrefix", "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy",
}
"""The options of Spark's Kafka source, as its guide for Spark 4 lists them."""

OPTION = re.compile(r'\.option\("([\w.]+)", (?:"([^"]*)")?')
QUERY = re.compile(r'spark\.(read|readStream)\.format\("tidemark"\)(.*?)\.load\(\)', re.DOTALL)


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of tables, without heads: names in backquotes of each cell, or its words."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", cell))


def test_p22_the_table_of_options_lists_every_one() -> None:
    listed = [name for row in rows(section("Options")) for name in names(row[0])]
    assert sorted(listed) == sorted(OPTIONS)


def test_p22_every_option_of_the_kafka_source_has_its_row() -> None:
    table = rows(section("Coming from the Kafka source"))
    left = [name for row in table for name in names(row[0]) if "column" not in row[0]]
    assert set(left) >= OF_KAFKA
    assert len(left) == len(set(left)), "an option has one row"
    for row in table:
        if row[1] and "column" not in row[0] and "[" not in row[1] and row[1] not in ("here", "the same"):
            assert names(row[1]) and names(row[1]) <= set(OPTIONS), row
        if row[1] == "the same" and "column" not in row[0]:
            assert names(row[0]) <= set(OPTIONS), row


@pytest.mark.parametrize("text", [PAGE, DRIVER.read_text(encoding="utf-8")], ids=["page", "driver"])
def test_p22_code_of_the_page_and_of_the_driver_pod_uses_options_that_are_taken(text: str) -> None:
    queries = QUERY.findall(text)
    assert queries
    for kind, code in queries:
        given = {name: value or "1" for name, value in OPTION.findall(code)}
        check_use(given, streaming=kind == "readStream")
        options = Options.of(given)
        assert {options.group, options.keyspace} - {""} <= set(given.values())


def test_the_driver_pod_and_its_executors_mount_what_the_job_names() -> None:
    parts = {each["kind"]: each for each in yaml.safe_load_all(DRIVER.read_text(encoding="utf-8"))}
    job, pod = parts["ConfigMap"]["data"], parts["Pod"]["spec"]
    options = dict(OPTION.findall(job["job.py"]))
    settings = dict(line.split() for line in job["spark-defaults.conf"].splitlines())
    secret = next(volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
    where = next(mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "tls")
    assert settings[f"spark.kubernetes.executor.secrets.{secret}"] == where
    assert {Path(options[name]).parent for name in ("tls.ca", "tls.cert", "tls.key")} == {Path(where)}
    service = parts["Service"]
    assert service["spec"]["selector"].items() <= parts["Pod"]["metadata"]["labels"].items()
    assert settings["spark.driver.host"] == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]} == ports
    assert settings["spark.kubernetes.driver.pod.name"] == parts["Pod"]["metadata"]["name"]
    assert settings["spark.kubernetes.container.image"] == pod["containers"][0]["image"]
    template = yaml.safe_load(job["executor.yaml"])
    assert template["spec"]["securityContext"]["runAsUser"] == pod["securityContext"]["runAsUser"]
