"""Messages whose body is said to lie in the blob store, and does not, or not as it was.

Sent by plain clients, which lay the body down themselves; the same on both brokers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bad_messages import Case, good
from tests.support.house import House, open_house
from tests.support.outside_clients import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CLAIM, HASH, SIZE = b"headrace-claim", b"headrace-claim-hash", b"headrace-claim-size"
LARGE = 100_000  # bytes of a body that may as well lie in the store


class Store:
    """The folder as a client without our code has it: a body is named by its hash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, body: bytes) -> dict[bytes, bytes]:
        """Returns the fields of a message without its body."""
        fields = claim_of(body)
        place = self.place(fields)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        return fields

    def place(self, fields: dict[bytes, bytes]) -> Path:
        return self.folder / fields[CLAIM].decode()


def claim_of(body: bytes) -> dict[bytes, bytes]:
    digits = hashlib.sha256(b"application/json\0" + body).hexdigest()
    return {
        CLAIM: f"{digits[:2]}/{digits}".encode(),
        HASH: digits.encode(),
        SIZE: str(len(body)).encode(),
    }


def large(name: str) -> bytes:
    return good(name).ljust(LARGE)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store") / "blobs")


@pytest.fixture(scope="module", params=["redis", "kafka"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store: Store
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp(request.param)
    with open_house(request, folder, "--blobs", str(store.folder)) as house:
        yield house


def send(house: House, name: str, fields: dict[bytes, bytes]) -> None:
    """Publishes a message of this id without a body, between two good ones."""
    house.publish_with_neighbours(Case(name, b"", {**fields, b"request-id": name.encode()}))


def line_of(house: House, name: str) -> dict[str, Any]:
    [line] = [line for line in house.results() if line["id"] == f"batch_req_{name}"]
    return line


def test_a_body_in_the_store_is_answered_as_any_other(house: House, store: Store) -> None:
    send(house, "large", store.put(large("large")))
    house.come_to_rest()
    line = line_of(house, "large")
    assert (line["custom_id"], line["response"]["status_code"]) == ("large", 200)


def test_a_claim_that_cannot_be_had_fails_with_what_is_wrong_and_its_neighbours_are_answered(
    house: House, store: Store, tmp_path: Path
) -> None:
    store.put(large("something"))
    (tmp_path / "outside").write_bytes(large("outside"))
    outside = claim_of(large("outside"))
    gone, changed, grown = (store.put(large(name)) for name in ("gone", "changed", "grown"))
    store.place(gone).unlink()
    store.place(changed).write_bytes(large("another"))
    store.place(grown).write_bytes(large("grown") + b"!")
    cases = {
        "gone": (gone, "is not in"),
        "changed": (changed, "not the body that was published"),
        "grown": (grown, "not the body that was published"),
        "smaller": ({**store.put(large("smaller")), SIZE: b"5"}, "not the body that was published"),
        "too-large": ({**claim_of(large("too-large")), SIZE: b"999999999"}, "holds up to"),
        "outside": ({**outside, CLAIM: f"{tmp_path}/outside".encode()}, "not that of the claim's hash"),
        "above": ({**outside, CLAIM: b"../../outside"}, "not that of the claim's hash"),
        "of-others": ({**outside, CLAIM: claim_of(large("smaller"))[CLAIM]}, "not that of the claim's hash"),
    }
    for name, (fields, _) in cases.items():
        send(house, name, fields)
    house.come_to_rest()
    for name, (_, reason) in cases.items():
        line = line_of(house, name)
        error = line["response"]["body"]["error"]
        assert (line["response"]["status_code"], error["code"]) == (400, "body_unavailable"), name
        assert reason in error["message"], name


def test_a_claim_that_is_none_is_a_dead_letter(house: House) -> None:
    claim = claim_of(large("half"))
    cases = {
        "no-hash": ({CLAIM: claim[CLAIM], SIZE: claim[SIZE]}, b""),
        "odd-hash": ({**claim, HASH: b"../../etc/passwd"}, b""),
        "odd-size": ({**claim, SIZE: b"-1"}, b""),
        "two-bodies": (claim, good("two-bodies")),
    }
    before = len(house.door.letters())
    for name, (fields, body) in cases.items():
        house.publish_with_neighbours(Case(name, body, fields))
    house.come_to_rest()
    reasons = [letter.reason for letter in house.door.letters()[before:]]
    assert len(reasons) == len(cases)
    assert all("claim" in reason for reason in reasons), reasons
    assert house.answered()["two-bodies"] == 0


def test_while_the_store_is_away_requests_wait_and_none_is_lost(house: House, store: Store) -> None:
    claims = {f"patient-{n}": store.put(large(f"patient-{n}")) for n in range(3)}
    away = store.folder.rename(store.folder.with_name("away"))
    for name, fields in claims.items():
        send(house, name, fields)
    eventually(lambda: house.shown()["retrying"], "a retry")
    house.settle()
    assert not claims.keys() & house.answered().keys()
    away.rename(store.folder)
    house.come_to_rest()
    for name in claims:
        line = line_of(house, name)
        assert (line["custom_id"], line["response"]["status_code"]) == (name, 200)
