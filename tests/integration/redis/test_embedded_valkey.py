"""The embedded server: it keeps what it acknowledged, dies with its parent, and says what is wrong."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from redis import Redis

from headrace.broker.embedded import valkey
from headrace.broker.embedded.folder import EmbeddedUnusable, ended_early, explain
from headrace.broker.embedded.valkey import EmbeddedValkey


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_until_dead(pid: int, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(pid)


def test_a_started_server_answers_on_a_socket_that_only_its_user_can_open(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server, Redis.from_url(server.url) as client:
        assert client.ping()
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert os.stat(tmp_path / "valkey.sock").st_mode & 0o777 == 0o700
    assert not server.alive


def test_a_killed_server_has_all_that_it_acknowledged_when_it_is_started_again(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    server.start()
    url = server.url
    with Redis.from_url(url) as client:
        for number in range(20):
            client.rpush("list", number)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert not server.alive
    server.start()
    assert server.url == url
    with Redis.from_url(url) as client:
        assert client.lrange("list", 0, -1) == [b"%d" % number for number in range(20)]
    server.stop()


def test_a_long_data_folder_gets_a_short_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    with EmbeddedValkey(folder) as server, Redis.from_url(server.url) as client:
        assert client.ping()
        assert len(server.url) < 120


def test_a_folder_with_odd_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20\"c'é"
    with EmbeddedValkey(folder) as server, Redis.from_url(server.url) as client:
        client.set("key", "value")
    assert (folder / "appendonlydir").is_dir()


def test_port_0_takes_a_free_loopback_port(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, port=0) as server, Redis.from_url(server.url) as client:
        assert server.url.startswith("redis://127.0.0.1:")
        assert client.ping()
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_an_occupied_port_is_named_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedUnusable, match=rf"^port {port} is taken by another program; .*choose"):
            EmbeddedValkey(tmp_path, port=port).start()


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "first", port=0) as first:
        port = int(first.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(EmbeddedUnusable, match="taken by another program"):
            EmbeddedValkey(tmp_path / "second", port=port).start()


@pytest.mark.slow
def test_a_second_server_on_the_same_folder_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as first:
        with pytest.raises(EmbeddedUnusable, match=rf"\(process {first.pid}\) uses {tmp_path}"):
            EmbeddedValkey(tmp_path).start()
        with pytest.raises(EmbeddedUnusable, match="runs already"):
            first.start()
        with Redis.from_url(first.url) as client:  # and the first one is none the worse
            assert client.ping()
    with EmbeddedValkey(tmp_path) as third:
        assert third.alive


def test_a_folder_that_cannot_be_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedUnusable, match="a file is in the way"):
        EmbeddedValkey(tmp_path / "file").start()
    with pytest.raises(EmbeddedUnusable, match="a file is in the way"):
        EmbeddedValkey(tmp_path / "file" / "below").start()
    with pytest.raises(EmbeddedUnusable, match="choose another folder"):
        EmbeddedValkey(Path("/proc/headrace")).start()


@pytest.mark.parametrize(
    ("code", "sentence"), [(errno.ENOSPC, "is full; free"), (errno.EACCES, "cannot be written to; change")]
)
def test_a_full_disk_or_a_closed_folder_is_one_sentence(tmp_path: Path, code: int, sentence: str) -> None:
    assert sentence in explain(OSError(code, os.strerror(code)), tmp_path)


def test_a_damaged_file_is_told_from_a_torn_end(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server, Redis.from_url(server.url) as client:
        client.set("first", "1")
        client.set("second", "2")
    (file,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    data = file.read_bytes()
    file.write_bytes(data[:-3])  # a write that a crash cut short: the command before it counts
    with EmbeddedValkey(tmp_path) as server, Redis.from_url(server.url) as client:
        assert client.get("first") == b"1"
        assert client.get("second") is None
    file.write_bytes(b"not a command\r\n" + data)
    with pytest.raises(EmbeddedUnusable, match="is damaged; restore it"):
        EmbeddedValkey(tmp_path).start()


def test_one_that_is_killed_while_it_starts_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedValkey(tmp_path)
    monkeypatch.setattr(valkey, "_answering_pid", lambda _: os.kill(server.pid, signal.SIGKILL))
    with pytest.raises(EmbeddedUnusable) as caught:
        server.start()
    said = str(caught.value)
    assert said.startswith(f"the server on {tmp_path} was killed (SIGKILL) while it started")
    assert f"see {tmp_path / 'valkey.log'}" in said
    assert "Configuration loaded" not in said  # a line of the log that happens to be the last one
    monkeypatch.undo()
    server.start()
    server.stop()


def test_a_server_that_ends_by_itself_is_told_with_its_status_and_its_log(tmp_path: Path) -> None:
    said = ended_early("the server", 3, tmp_path / "a.log")
    assert said.startswith("the server did not start (status 3); see ")
    assert "disk and memory have room" in said
    assert "(signal 99)" in ended_early("the server", -99, tmp_path / "a.log")


def test_a_port_of_our_choice_stays_once_clients_know_it(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path, port=0)
    server.start()
    url = server.url
    port = int(url.rpartition(":")[2].partition("/")[0])
    server.stop()
    taken = pytest.raises(EmbeddedUnusable, match="is taken by another program")
    with socket.create_server(("127.0.0.1", port)), taken:
        server.start()
    server.start()
    assert server.url == url
    server.stop()


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    with Redis.from_url(server.url) as client:
        assert client.ping()
    server.stop()


@pytest.mark.slow
def test_the_server_dies_with_its_parent_and_the_folder_is_free_at_once(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.broker.embedded.valkey import EmbeddedValkey\n"
        "server = EmbeddedValkey(Path(sys.argv[1])); server.start(); print(server.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    with EmbeddedValkey(tmp_path) as server:  # no pause: it waits for the old one's end itself
        assert server.pid != pid
    _wait_until_dead(pid)
