"""Addresses and options of a Kafka connection: what is passed on, and what is refused, in a sentence."""

from __future__ import annotations

import pytest

from headrace.broker.errors import BrokerError
from headrace.broker.kafka.address import address_of, parse_address
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.settings import Delay, KafkaSettings, parse_delay

LOGIN = {"sasl_plain_username": "ann", "sasl_plain_password": "s3cret"}


def test_an_address_names_nodes_with_and_without_ports() -> None:
    settings = parse_address("kafka://one:9093,two,[::1]:9094")
    assert settings.servers == ("one:9093", "two:9092", "[::1]:9094")


def test_options_stand_in_the_address_or_beside_it_and_those_beside_it_win() -> None:
    settings = parse_address(
        "kafka://one/?partitions=4&delays=30s 5s", {"partitions": "8", "log-ms": "60000"}
    )
    assert (settings.partitions, settings.log_ms) == (8, 60_000)
    assert settings.delays == (Delay("5s", 5_000), Delay("30s", 30_000))


def test_security_options_reach_every_client_as_kafka_python_knows_them() -> None:
    options = {
        "security_protocol": "sasl_ssl",
        "ssl_cafile": "/ca.pem",
        "ssl-check-hostname": "false",
        **LOGIN,
    }
    clients = Clients(parse_address("kafka://one", options))
    expected = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        **LOGIN,
    }
    for made in (clients.options(), clients.producer_options(), clients.consumer_options()):
        assert expected.items() <= made.items()


def test_user_and_password_of_an_address_are_a_login() -> None:
    settings = parse_address("kafka://ann:p%40ss@one/?security_protocol=SASL_PLAINTEXT")
    assert settings.security["sasl_plain_username"] == "ann"
    assert settings.security["sasl_plain_password"] == "p@ss"


def test_no_secret_is_shown() -> None:
    url = "kafka://ann:s3cret@one:9093/?security_protocol=SASL_SSL&ssl_password=hush"
    settings = parse_address(url)
    shown = address_of(url) + repr(settings) + Clients(settings).servers
    assert "s3cret" not in shown
    assert "hush" not in shown
    assert address_of(url) == "kafka://one:9093"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("kafka://", {}, "host and port"),
        ("kafka://one:99999", {}, "host and port"),
        ("kafka://one,,two", {}, "host and port"),
        ("kafka://one/topic", {}, "behind the hosts"),
        ("kafka://one", {"sasl_pasword": "x"}, "not known"),
        ("kafka://one", {"bootstrap_servers": "x"}, "not known"),
        ("kafka://one", {"security_protocol": "TLS"}, "one of PLAINTEXT"),
        ("kafka://one", {"security_protocol": "SASL_SSL"}, "sasl_plain_username"),
        ("kafka://one", {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "one of PLAIN"),
        ("kafka://one", {"ssl_cafile": "/ca.pem"}, "needs security_protocol"),
        ("kafka://ann:s3cret@one", {}, "needs security_protocol"),
        (
            "kafka://one",
            {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": "x"},
            "needs security_protocol",
        ),
        ("kafka://one", {"ssl_check_hostname": "maybe", "security_protocol": "SSL"}, "`true` or `false`"),
        ("kafka://one", {"partitions": "0"}, "from 1 to 16384"),
        ("kafka://one", {"partitions": "many"}, "whole number"),
        ("kafka://one", {"delays": "5 s"}, "no length"),
        ("kafka://one", {"delays": " "}, "at least one"),
        ("kafka://one", {"results": "twice"}, "exactly_once"),
        ("kafka://one", {"group_instance_id": "a b"}, "letters"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_without_a_secret(
    url: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(BrokerError, match=said) as refused:
        parse_address(url, options)
    assert "s3cret" not in str(refused.value)


def test_a_retry_takes_the_shortest_delay_that_is_long_enough_or_the_longest() -> None:
    settings = KafkaSettings(("one",), delays=(parse_delay("500ms"), parse_delay("2m")))
    assert [settings.delay_for(ms).name for ms in (0, 500, 501, 10**9)] == ["500ms", "500ms", "2m", "2m"]
