"""What a broker address may be, and what a server must have."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis

from headrace.broker.connect import connect
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.message import Message, RequestRef
from headrace.broker.redis_streams.adapter import RedisBroker
from headrace.broker.redis_streams.address import address_of
from headrace.broker.redis_streams.link import Link, Reply, Value
from headrace.broker.redis_streams.probe import check_server


@dataclass
class FakeServer(Link):
    """Answers as a server of any kind."""

    info: dict[str, str] = field(default_factory=dict)
    fsync: str = "always"
    address: str = "redis://somewhere"

    async def call(self, *command: Value) -> Reply:
        if command[0] == "CONFIG":
            return [b"appendfsync", self.fsync.encode()]
        usual = {"redis_version": "7.2.4", "cluster_enabled": "0", "role": "master", "aof_enabled": "1"}
        fields = usual | {"maxmemory_policy": "noeviction"} | self.info
        return "\r\n".join(["# Server", *(f"{k}:{v}" for k, v in fields.items())]).encode()


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ({"redis_version": "6.0.16"}, "runs version 6.0.16; Redis 6.2 or any Valkey is needed"),
        ({"redis_version": "5.0.7"}, "6.2"),
        ({"cluster_enabled": "1"}, "is a cluster; use a single server"),
        ({"role": "slave"}, "read-only replica; connect to its primary"),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused(info: dict[str, str], sentence: str) -> None:
    with pytest.raises(BrokerRefused, match=sentence):
        await check_server(FakeServer(info))


@pytest.mark.parametrize(
    ("server", "warnings"),
    [
        (FakeServer(), []),
        (FakeServer({"redis_version": "6.2.0"}), []),
        (FakeServer({"redis_version": "10.1.0"}), []),
        (FakeServer({"maxmemory_policy": "allkeys-lru"}), ["maxmemory-policy allkeys-lru"]),
        (FakeServer({"aof_enabled": "0"}), ["keeps no append-only file"]),
        (FakeServer(fsync="everysec"), ["appendfsync everysec"]),
    ],
)
async def test_a_server_that_promises_less_is_warned_of(server: FakeServer, warnings: list[str]) -> None:
    found = await check_server(server)
    assert len(found) == len(warnings)
    assert all(part in warning for part, warning in zip(warnings, found, strict=True))


async def test_warnings_of_a_real_server_are_logged_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedValkey(tmp_path) as server:
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory-policy", "allkeys-lfu")
            await client.config_set("appendonly", "no")
        with caplog.at_level(logging.WARNING, "headrace.broker.connect"):  # commands silence it
            broker = await connect(server.url)
        assert isinstance(broker, RedisBroker)
        assert [record.message for record in caplog.records] == broker.warnings
        assert len(broker.warnings) == 2
        await broker.close()


async def test_the_embedded_server_needs_no_warning(valkey: EmbeddedValkey) -> None:
    broker = await connect(valkey.url)
    assert isinstance(broker, RedisBroker)
    assert broker.warnings == []
    await broker.close()


async def test_an_unreachable_broker_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(
        BrokerUnavailable, match=rf"^cannot reach redis://127.0.0.1:{port}/0 .*is it running"
    ) as e:
        await connect(f"redis://user:secret@127.0.0.1:{port}/0")
    assert "secret" not in str(e.value)
    with pytest.raises(BrokerUnavailable, match="cannot reach unix:///"):
        await connect(f"unix://{tmp_path}/nothing.sock?password=secret")


async def test_a_wrong_password_is_one_sentence(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, port=0) as server:
        async with Redis.from_url(server.url) as client:
            await client.config_set("requirepass", "secret")
        wrong = server.url.replace("redis://", "redis://:wrong@")
        with pytest.raises(BrokerRefused, match=r"refused the login: .*check user and password") as error:
            await connect(wrong)
        assert ":wrong" not in str(error.value)
        with pytest.raises(BrokerRefused, match="refused the login"):
            await connect(server.url)
        broker = await connect(server.url.replace("redis://", "redis://:secret@"))
        await broker.close()


@pytest.mark.parametrize("url", ["amqp://localhost", "localhost:6379", "", "http://x", "redis"])
async def test_an_address_of_another_kind_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(BrokerError, match=r"(use one of|begins with) redis://, rediss://, unix://"):
        await connect(url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://localhost:port/0", "could not be cast"),
        ("redis://localhost:99999/0", "out of range"),
        ("redis://[::1", "Invalid IPv6"),
        ("redis://localhost/mine", "number of a database"),
        ("redis://localhost?db=mine", "'db'"),
        ("redis://localhost?colour=red", "'colour' is not known"),
        ("redis://localhost?decode_responses=true", "is not known"),
        ("redis://localhost?protocol=3", "is not known"),
        ("redis://localhost?socket_timeout=0.1", "is not known"),
        ("redis://localhost?ssl_cert_reqs=none", "ssl_cert_reqs"),
        ("rediss://localhost?ssl_cert_reqs=maybe", "maybe"),
        ("rediss://localhost?ssl_colour=red", "ssl_colour"),
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_with_the_reason(url: str, sentence: str) -> None:
    with pytest.raises(BrokerError, match=f"no usable broker address: .*{sentence}"):
        await connect(url)


async def test_an_address_may_name_database_and_client(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, port=0) as server:
        broker = await connect(server.url.removesuffix("/0") + "?db=3&client_name=here")
        await broker.publish([Message(b"x", "r")])
        async with Redis.from_url(server.url.removesuffix("/0") + "/3") as client:
            assert await client.exists("headrace.requests.standard")
        await broker.close()


@pytest.mark.parametrize("prefix", ["", "a:b", "a/b", "a b", "é"])
async def test_a_prefix_that_would_break_names_is_refused(valkey: EmbeddedValkey, prefix: str) -> None:
    with pytest.raises(BrokerError, match="prefix"):
        await connect(valkey.url, prefix=prefix)


async def test_two_prefixes_share_a_server_and_nothing_else(valkey: EmbeddedValkey) -> None:
    one, two = await connect(valkey.url, prefix="one"), await connect(valkey.url, prefix="two")
    await one.publish([Message(b"x", "r")])
    assert await one.known(RequestRef("r"))
    assert not await two.known(RequestRef("r"))
    await one.close()
    await two.close()


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert address_of("rediss://u:p@host:1/2?password=q") == "rediss://host:1/2"
    assert address_of("unix://u@/a/b.sock?password=q") == "unix:///a/b.sock"
