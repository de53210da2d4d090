"""What a node is run from: Java, the jars, an archive of loaded classes, and a formatted data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.broker.embedded.apache_kafka.java import Java

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",  # says when it has started
)
# Quick to start and small; the second compiler and a parallel collector pay off on servers with many cores.
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@dataclass(frozen=True, slots=True)
class KafkaHome:
    """All that a node is run from. `options` are further ones of the Java machine."""

    java: Java
    jars: tuple[Path, ...]
    formatted: Path
    options: tuple[str, ...] = ()

    def command(self, main: str, *arguments: str, heap_mb: int) -> list[str]:
        """The command line that runs class `main`."""
        machine = (str(self.java.program), f"-Xmx{heap_mb}m", *_SMALL, *_LOGGING, *self.options)
        return [*machine, "-cp", ":".join(map(str, self.jars)), main, *arguments]
