"""The embedded Kafka: it keeps what it acknowledged, dies with its parent, and says what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from headrace.broker.embedded.apache_kafka.properties import Ports, node_properties, write_properties
from headrace.broker.embedded.apache_kafka.provision import provide_home
from headrace.broker.embedded.kafka import EmbeddedKafka, EmbeddedUnusable, KafkaOptions
from tests.support.kafka_server import HEAP_MB, require_kafka, running_kafka

TOPIC = "numbers"


def create_topic(server: EmbeddedKafka, replicas: int = 1) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": replicas}})
    admin.close()


def send(server: EmbeddedKafka, numbers: range) -> None:
    """Returns once all are acknowledged."""
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
    for number in numbers:
        producer.send(TOPIC, str(number).encode())
    producer.flush(30)
    producer.close()


def stored(server: EmbeddedKafka) -> list[int]:
    partition = TopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest")
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    found: list[int] = []
    while len(found) < end:
        records = consumer.poll(1000).get(partition, [])
        found.extend(int(record.value) for record in records)
    consumer.close()
    return found


def listening_addresses(pid: int) -> set[str]:
    """Local addresses of all listening TCP sockets of a process, as /proc writes them."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.slow
def test_a_node_keeps_what_it_acknowledged_over_kills_and_restarts(tmp_path: Path) -> None:
    with running_kafka(tmp_path) as server:
        loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
        assert listening_addresses(server.pid()) <= loopback
        create_topic(server)
        send(server, range(20))
        url = server.url
        server.kill()
        assert not server.alive
        server.start()
        assert server.alive
        assert server.url == url
        send(server, range(20, 40))
    assert not server.alive
    with running_kafka(tmp_path) as again:
        assert again.url == url, "whoever knows the address finds it again"
        assert stored(again) == list(range(40))


@pytest.mark.slow
def test_three_nodes_go_on_when_one_is_killed(kafka_cluster: EmbeddedKafka) -> None:
    assert len(kafka_cluster.bootstrap.split(",")) == 3
    create_topic(kafka_cluster, replicas=3)
    send(kafka_cluster, range(20))
    kafka_cluster.kill(2)
    assert not kafka_cluster.alive
    send(kafka_cluster, range(20, 40))
    kafka_cluster.restart(2)
    assert kafka_cluster.alive
    assert stored(kafka_cluster) == list(range(40))


@pytest.mark.slow
def test_a_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with running_kafka(tmp_path) as server:
        with pytest.raises(EmbeddedUnusable, match=r"another server \(process \d+\) uses"):
            EmbeddedKafka(tmp_path).start()
        assert server.alive
    with pytest.raises(EmbeddedUnusable, match=r"a cluster of 1 node\(s\), not 3"):
        EmbeddedKafka(tmp_path, KafkaOptions(nodes=3)).start()


@pytest.mark.slow
def test_a_node_dies_with_its_parent(tmp_path: Path) -> None:
    require_kafka()
    program = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.broker.embedded.kafka import EmbeddedKafka\n"
        "server = EmbeddedKafka(Path(sys.argv[1])); server.start()\n"
        "print(server.pid(), flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    require_kafka()
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        with pytest.raises(EmbeddedUnusable, match="is taken by another program"):
            EmbeddedKafka(tmp_path / "data", KafkaOptions(port=port, heap_mb=HEAP_MB)).start()


@pytest.mark.slow
def test_settings_of_kafka_that_make_no_sense_are_said(tmp_path: Path) -> None:
    require_kafka()
    nonsense = KafkaOptions(properties={"num.partitions": "many"}, heap_mb=HEAP_MB)
    with pytest.raises(EmbeddedUnusable, match=r"did not start: .*many"):
        EmbeddedKafka(tmp_path / "data", nonsense).start()


class Tools:
    """A PATH that holds only what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, script: str) -> Path:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o700)
        return program


JAVA_17 = """
case "$*" in
  -version) echo 'openjdk version "17.0.1" 2021-10-19' >&2 ;;
  *StorageTool*) for last; do :; done
    folder=$(/bin/sed -n 's/^log.dirs=//p' "$last"); /bin/mkdir -p "$folder" ;;
  *ArchiveClassesAtExit=*) archive=${*#*ArchiveClassesAtExit=}; archive=${archive%% *}
    trap 'echo classes > "$archive"; exit 0' TERM
    echo 'Kafka Server started'; while :; do /bin/sleep 0.02; done ;;
esac
"""
MAVEN = """
for argument; do case "$argument" in -DoutputDirectory=*) folder=${argument#*=} ;; esac; done
echo fetched >> "$(/usr/bin/dirname "$0")/fetches"
/bin/sleep 0.1; /bin/mkdir -p "$folder"; echo jar > "$folder/kafka.jar"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return Tools(tmp_path / "bin")


def test_without_java_the_sentence_says_what_to_install(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedUnusable, match=r"needs Java 17 or newer, and there is no java here; install"):
        provide_home(tmp_path / "cache")


def test_a_java_that_is_too_old_is_refused(tools: Tools, tmp_path: Path) -> None:
    java = tools.add("java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(EmbeddedUnusable, match=f"{java} is Java 11; install a newer one"):
        provide_home(tmp_path / "cache")


def test_a_java_that_does_not_work_is_said(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(EmbeddedUnusable, match="is no Java that works: Unable to locate"):
        provide_home(tmp_path / "cache")


def test_without_maven_the_sentence_says_what_to_install(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", JAVA_17)
    with pytest.raises(EmbeddedUnusable, match=r"fetched by Maven, and there is no mvn here; install"):
        provide_home(tmp_path / "cache")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("[ERROR] Could not transfer artifact x: Unknown host y", "Maven needs the network"),
        ("[ERROR] the settings are broken", "could not be fetched by Maven: the settings are broken"),
    ],
)
def test_a_maven_that_fails_is_quoted_and_leaves_nothing(
    tools: Tools, tmp_path: Path, said: str, sentence: str
) -> None:
    tools.add("java", JAVA_17)
    tools.add("mvn", f"echo '{said}'; exit 1")
    with pytest.raises(EmbeddedUnusable, match=sentence):
        provide_home(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_cache_that_cannot_be_written_is_said(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", JAVA_17)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EmbeddedUnusable, match="a file is in the way"):
        provide_home(tmp_path / "file" / "cache")


def test_a_data_folder_that_cannot_be_written_is_said(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", JAVA_17)
    tools.add("mvn", MAVEN)
    (tmp_path / "file").write_text("in the way")
    server = EmbeddedKafka(tmp_path / "file", KafkaOptions(cache=tmp_path / "cache"))
    with pytest.raises(EmbeddedUnusable, match="a file is in the way; choose another folder"):
        server.start()


def test_many_that_want_kafka_at_once_fetch_it_once(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", JAVA_17)
    tools.add("mvn", MAVEN)
    with ThreadPoolExecutor(4) as pool:
        homes = list(pool.map(lambda _: provide_home(tmp_path / "cache"), range(4)))
    assert homes == homes[:1] * 4
    assert (tools.folder / "fetches").read_text() == "fetched\n"
    assert [jar.read_text() for jar in homes[0].jars] == ["jar\n"]
    assert any("-XX:SharedArchiveFile=" in option for option in homes[0].options)


def test_what_was_fetched_needs_no_maven_and_no_writing_again(tools: Tools, tmp_path: Path) -> None:
    tools.add("java", JAVA_17)
    maven = tools.add("mvn", MAVEN)
    home = provide_home(tmp_path / "cache")
    maven.unlink()
    (tmp_path / "cache" / "lock").unlink()
    assert provide_home(tmp_path / "cache") == home
    assert not (tmp_path / "cache" / "lock").exists()


def test_of_three_nodes_one_may_die_and_none_that_lags_may_lead() -> None:
    properties = node_properties(1, [Ports(1, 4), Ports(2, 5), Ports(3, 6)], Path("data"), {})
    assert properties["default.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    assert properties["unclean.leader.election.enable"] == "false"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"


def test_a_path_with_odd_characters_is_written_as_java_reads_it(tmp_path: Path) -> None:
    write_properties(tmp_path / "p", {"log.dirs": "/a\\b é 𝄞"})
    assert (tmp_path / "p").read_bytes() == b"log.dirs=/a\\\\b \\u00e9 \\ud834\\udd1e\n"
