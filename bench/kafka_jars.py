"""The jars of a Kafka server and of Spark's connector to it, which Maven fetches once into the user's cache.

`bench/kafka/pom.xml` pins their versions; mirrors are those of Maven's own settings.
Stays out: running them (`kafka_cluster`, `workers.spark_round`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POM = Path(__file__).parent / "kafka" / "pom.xml"
FETCH_S_MAX = 600


@dataclass(frozen=True, slots=True)
class Jars:
    """Where Java is, and the two folders of jars."""

    java: str
    server: Path
    connector: Path


def version(name: str) -> str:
    """Return the version of `kafka` or `connector` that the pom pins."""
    found = re.search(rf"<{name}\.version>(.+)</", POM.read_text())
    assert found, f"{POM.name} does not pin {name}"
    return found[1]


def cache_directory() -> Path:
    """Return the folder of the jars that the pom describes, for every checkout alike."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tidemark" / "bench-kafka" / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


def prepare(say: Callable[[str], None]) -> Jars | str:
    """Return the jars, or a sentence that says why this machine cannot run Kafka."""
    java = _java()
    if java is None:
        return "no Kafka: put Java 17 or newer on PATH, or name it in JAVA_HOME, and try again"
    for profile in ("server", "connector"):
        if not (cache_directory() / profile).exists() and (problem := _fetch(profile, say)):
            return problem
    return Jars(java, cache_directory() / "server", cache_directory() / "connector")


def _java() -> str | None:
    """Return the Java that Spark takes as well."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def _fetch(profile: str, say: Callable[[str], None]) -> str:
    """Let Maven copy the jars of a profile into the cache; return why it could not, or an empty text."""
    maven = shutil.which("mvn")
    if maven is None:
        return f"no Kafka: put Maven on PATH, which fetches the jars that {POM.name} names, and try again"
    say(f"fetching the jars of Kafka's {profile} into {cache_directory()} (once)")
    cache_directory().mkdir(parents=True, exist_ok=True)
    partial = cache_directory() / f".{profile}.{os.getpid()}"
    try:
        done = subprocess.run(
            (maven, "--batch-mode", "--quiet", "--file", str(POM), "--activate-profiles", profile,
             "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=FETCH_S_MAX, check=False)
        if done.returncode:
            said = next((line for line in done.stdout.splitlines() if "ERROR" in line), "nothing")
            return f"no Kafka: Maven could not fetch its {profile} and said: {said}"
        if not (cache_directory() / profile).exists():   # another run may have fetched them while this one did
            partial.replace(cache_directory() / profile)
    except subprocess.TimeoutExpired:
        return f"no Kafka: Maven did not fetch its {profile} within {FETCH_S_MAX} s"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ""
