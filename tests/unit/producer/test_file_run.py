from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.blobs import BlobStore
from headrace.producer.backoff import RetryPolicy
from headrace.producer.file_run import FileRunError, FileRunOptions, Progress, Summary, run_file
from headrace.producer.file_run.mark import mark_path
from headrace.producer.file_run.run import FileRun
from tests.unit.producer.fake_queue import FakeQueue

QUICK = RetryPolicy(first_s=0.001, longest_s=0.002, patience_s=5)


def request_line(custom_id: str, prompt: str | None = None) -> bytes:
    body = {"prompt": prompt or custom_id}
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(fields).encode()


@pytest.fixture
async def queue() -> AsyncIterator[FakeQueue]:
    queue = FakeQueue()
    consumer = asyncio.create_task(queue.consume_for_ever())
    yield queue
    consumer.cancel()


class Bench:
    """One input, one output, and the options to run them with."""

    def __init__(self, folder: Path) -> None:
        self.input = folder / "in.jsonl"
        self.output = folder / "out.jsonl"
        self.options: dict[str, Any] = {"window": 16, "policy": QUICK, "quiet_s": 0.01}
        self.reports: list[Progress] = []

    def write(self, *lines: bytes, end: bytes = b"\n") -> None:
        self.input.write_bytes(end.join(lines) + end)

    async def run(self, queue: FakeQueue, **options: Any) -> Summary:
        given = {"input": self.input, "output": self.output, **self.options, **options}
        return await run_file(queue, FileRunOptions(**given), self.reports.append)

    def lines(self) -> list[dict[str, Any]]:
        raw = self.output.read_bytes()
        assert not raw or raw.endswith(b"\n")
        return [json.loads(line) for line in raw.decode().splitlines()]

    def custom_ids(self) -> list[str]:
        return sorted(str(line["custom_id"]) for line in self.lines())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def numbered(count: int) -> list[bytes]:
    return [request_line(f"id-{n}") for n in range(count)]


# --------------------------------------------------------------------------------------------- a whole run


async def test_large_lines_go_through_the_blob_store_and_are_answered_like_all_others(
    bench: Bench, queue: FakeQueue
) -> None:
    store = BlobStore(str(bench.input.parent / "blobs"), threshold=300)
    queue.blobs = store
    bench.write(request_line("small"), request_line("large", prompt="x" * 500))
    summary = await bench.run(queue, blobs=store)
    assert (summary.done, summary.failed) == (2, 0)
    assert bench.custom_ids() == ["large", "small"]
    assert sorted(message.claim is None for message in queue.messages.values()) == [False, True]


async def test_a_blob_store_that_stays_away_ends_the_run_with_a_sentence(
    bench: Bench, queue: FakeQueue
) -> None:
    (bench.input.parent / "file").write_text("no folder")
    store = BlobStore(str(bench.input.parent / "file" / "blobs"), threshold=1)
    bench.write(request_line("a"))
    with pytest.raises(FileRunError, match="the blob store stays away"):
        await bench.run(queue, blobs=store, policy=RetryPolicy(0.001, 0.001, patience_s=0.02))


async def test_every_line_gets_its_answer(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(100))
    summary = await bench.run(queue)
    assert (summary.total, summary.done, summary.failed, summary.resumed) == (100, 100, 0, 0)
    assert (summary.prompt_tokens, summary.completion_tokens) == (300, 200)
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in bench.lines()}
    assert answers == {f"id-{n}": f"id-{n}\u2028!" for n in range(100)}


async def test_the_message_is_the_line_as_it_stands(bench: Bench, queue: FakeQueue) -> None:
    bench.write(b"\xef\xbb\xbf" + request_line("a"), request_line("b"), end=b"\r\n")
    summary = await bench.run(queue, prefix="mill")
    first, second = queue.messages.values()
    assert (first.body, second.body) == (request_line("a"), request_line("b"))
    assert first.request_id == f"req_{summary.run_id}_1"
    assert first.reply_to == f"mill.reply.run-{summary.run_id}"
    assert (first.lane.value, first.content_type, first.stream) == ("batch", "application/json", False)


async def test_an_invalid_line_gets_its_error_and_its_neighbours_their_answers(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(
        request_line("a"), b"", b"{not json", request_line("b"), request_line("a"), request_line("c", "fail")
    )
    summary = await bench.run(queue)
    assert (summary.total, summary.done, summary.failed) == (5, 2, 3)
    errors = {
        line["id"].rpartition("_")[2]: line["response"]["body"]["error"]
        for line in bench.lines()
        if line["response"]["status_code"] != 200
    }
    assert {number: error["code"] for number, error in errors.items()} == {
        "3": "invalid_json_line",
        "5": "duplicate_custom_id",
        "6": "internal_error",
    }
    assert errors["3"]["message"].startswith("line 3: ")


async def test_a_line_that_a_consumer_refused_has_its_number_too(bench: Bench, queue: FakeQueue) -> None:
    bench.write(b"", request_line("a"), b"\r", request_line("b", "fail"))
    await bench.run(queue)
    [error] = [line["response"]["body"]["error"] for line in bench.lines() if line["custom_id"] == "b"]
    assert error["line"] == 4
    assert error["message"].startswith("line 4: ")


async def test_the_window_bounds_what_is_in_flight(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(200))
    await bench.run(queue, window=7)
    assert 1 < queue.most_waiting <= 7


async def test_the_reply_topic_is_empty_afterwards_and_the_mark_is_gone(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(*numbered(30))
    await bench.run(queue)
    assert list(queue.topics.values()) == [[]]
    assert not mark_path(bench.output).exists()


async def test_progress_only_ever_rises_to_the_total(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(50))
    await bench.run(queue)
    done = [report.done for report in bench.reports]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 50)
    assert {report.total for report in bench.reports} == {50}


async def test_an_input_without_requests_makes_an_empty_output(bench: Bench, queue: FakeQueue) -> None:
    bench.input.write_bytes(b"\xef\xbb\xbf\n  \n")
    summary = await bench.run(queue)
    assert (summary.total, bench.output.read_bytes()) == (0, b"")


async def test_foreign_lines_in_the_reply_topic_are_skipped(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(5))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue))
    await queue.published(1)
    topic = next(iter(queue.messages.values())).reply_to or ""
    await queue.deliver(topic, b"noise")
    await queue.deliver(topic, b'{"id":"batch_req_x","response":null,"error":null}')
    await queue.set_answering(True)
    assert (await running).done == 5


# ------------------------------------------------------------------------------------------ kill and restart


async def stop(running: asyncio.Task[Summary]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def begin(bench: Bench, queue: FakeQueue, lines: int) -> None:
    """Runs until OUT holds at least `lines` lines, then stops the run."""
    enough = asyncio.Event()
    given = {"input": bench.input, "output": bench.output, **bench.options}

    def report(progress: Progress) -> None:
        if progress.done >= lines:
            enough.set()

    running = asyncio.create_task(run_file(queue, FileRunOptions(**given), report))
    await enough.wait()
    await stop(running)


async def test_a_run_that_was_stopped_goes_on_where_it_stopped(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(300))
    await begin(bench, queue, 20)
    before = bench.output.read_bytes()
    assert mark_path(bench.output).exists()
    summary = await bench.run(queue)
    assert bench.output.read_bytes().startswith(before)
    assert summary.resumed == before.count(b"\n")
    assert summary.done == 300
    assert bench.custom_ids() == sorted(f"id-{n}" for n in range(300))
    assert set(queue.runs.values()) == {1}


async def test_a_run_stopped_before_its_first_line_finds_its_own_requests_again(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(*numbered(10))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue))
    await queue.published(10)
    await stop(running)
    assert bench.output.read_bytes() == b""
    await queue.set_answering(True)
    assert (await bench.run(queue)).done == 10
    assert len(queue.messages) == 10


async def test_results_that_came_while_nobody_ran_are_not_asked_for_again(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(*numbered(10))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue))
    await queue.published(10)
    await stop(running)
    for _ in range(10):
        await queue.answer_one()
    assert (await bench.run(queue)).done == 10
    assert queue.publishes == 10


async def test_a_torn_last_line_is_cut_off_and_written_whole(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(10))
    await bench.run(queue)
    whole = bench.output.read_bytes()
    last = len(whole.splitlines()[-1])
    for kept in range(1, last, 97):
        bench.output.write_bytes(whole[: -last - 1 + kept])
        assert (await bench.run(queue)).done == 10
        assert bench.custom_ids() == sorted(f"id-{n}" for n in range(10))


@pytest.mark.parametrize("tells_duplicates", [True, False])
async def test_a_line_deleted_from_the_output_is_asked_for_again(
    bench: Bench, queue: FakeQueue, tells_duplicates: bool
) -> None:
    queue.tells_duplicates = tells_duplicates
    bench.write(*numbered(9), request_line("bad", "fail"))
    first = await bench.run(queue)
    kept = [line for line in bench.output.read_bytes().splitlines(keepends=True) if b'"error":null}' in line]
    good = [line for line in kept if b"internal_error" not in line]
    bench.output.write_bytes(b"".join(good))
    second = await asyncio.wait_for(bench.run(queue), 10)
    assert (second.run_id, second.resumed, second.failed) == (first.run_id, 9, 1)
    assert queue.runs[f"req_{first.run_id}_10"] == 1
    assert queue.runs[f"req_{first.run_id}_10-2"] == 1


async def test_the_same_input_run_anew_is_another_run(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(5))
    first = await bench.run(queue)
    bench.output.unlink()
    second = await bench.run(queue)
    assert second.run_id != first.run_id
    assert (second.resumed, second.done) == (0, 5)


async def test_a_complete_run_needs_no_broker_to_say_so(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(3), b"nonsense")
    await bench.run(queue)
    with FileRun.open(FileRunOptions(input=bench.input, output=bench.output)) as run:
        assert run.complete
        summary = run.finish()
    assert (summary.done, summary.failed, summary.resumed) == (3, 1, 4)
    assert len(bench.lines()) == 4


async def test_a_complete_run_started_again_asks_for_nothing(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(5), b"bad")
    await bench.run(queue)
    before = bench.output.read_bytes()
    queue.away = True
    summary = await bench.run(queue)
    assert (summary.done, summary.failed, summary.resumed) == (5, 1, 6)
    assert bench.output.read_bytes() == before


async def test_results_that_come_twice_are_written_once(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(20))
    await begin(bench, queue, 3)
    summary_lines = bench.output.read_bytes().splitlines()
    topic = next(iter(queue.topics))
    for line in summary_lines:
        await queue.deliver(topic, line)
    await bench.run(queue)
    assert bench.custom_ids() == sorted(f"id-{n}" for n in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_killed_at_random_points_it_ends_with_the_lines_of_an_unbroken_run(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    lines = [
        chance.choice([request_line(f"id-{n}"), request_line(f"id-{n}", "fail"), b"junk"]) for n in range(240)
    ]
    unbroken, broken = Bench(tmp_path / "a"), Bench(tmp_path / "b")
    for bench in (unbroken, broken):
        bench.input.parent.mkdir()
        bench.write(*lines)
    queue = FakeQueue(seed)
    consumer = asyncio.create_task(queue.consume_for_ever())
    await unbroken.run(queue)
    kills = 0
    while not await killed_in_mid_run(broken, queue, chance):
        kills += 1
    consumer.cancel()
    assert kills >= 5
    assert contents(broken) == contents(unbroken)


async def killed_in_mid_run(bench: Bench, queue: FakeQueue, chance: random.Random) -> bool:
    """Starts the run and kills it after a few results, perhaps in the middle of a line; True if it was done
    before."""
    queue.outages = chance.choice([0, 0, 3])
    running = asyncio.create_task(bench.run(queue))
    enough = asyncio.create_task(queue.delivered(chance.randint(0, 12)))
    await asyncio.wait({running, enough}, return_when=asyncio.FIRST_COMPLETED)
    for _ in range(chance.randint(0, 8)):
        await asyncio.sleep(0)
    enough.cancel()
    if running.done():
        running.result()
        return True
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if bench.output.exists() and chance.random() < 0.5:
        size = bench.output.stat().st_size
        os.truncate(bench.output, chance.randint(max(0, size - 2000), size))
    return False


def contents(bench: Bench) -> list[str]:
    """The lines without the ids that differ from run to run."""

    def plain(line: dict[str, Any]) -> str:
        number = line.pop("id").rpartition("_")[2].partition("-")[0]
        line["response"].pop("request_id")
        line["response"]["body"].pop("id", None)
        return json.dumps([int(number), line], sort_keys=True)

    return sorted(plain(line) for line in bench.lines())


# ------------------------------------------------------------------------------------ what can be in the way


async def test_an_input_that_was_changed_since_is_refused_and_the_output_kept(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(*numbered(5))
    await bench.run(queue)
    before = bench.output.read_bytes()
    bench.write(*numbered(6))
    with pytest.raises(FileRunError, match="input was changed"):
        await bench.run(queue)
    assert bench.output.read_bytes() == before


async def test_another_model_is_another_run(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(5))
    await bench.run(queue, model="a")
    with pytest.raises(FileRunError, match="model"):
        await bench.run(queue, model="b")


@pytest.mark.parametrize(
    "content",
    [b"hello", b"hello\n", b'{"a": 1}\n', b'{"id":"batch_req_abc"}\n', b"\n", b'{"id":"batch_req_1\n'],
)
async def test_an_output_that_holds_something_else_is_never_touched(
    bench: Bench, queue: FakeQueue, content: bytes
) -> None:
    bench.write(*numbered(5))
    bench.output.write_bytes(content)
    with pytest.raises(FileRunError, match="something other than results"):
        await bench.run(queue)
    assert bench.output.read_bytes() == content


async def test_an_input_that_cannot_be_read_is_one_sentence(
    bench: Bench, queue: FakeQueue, tmp_path: Path
) -> None:
    with pytest.raises(FileRunError, match="there is no file"):
        await bench.run(queue)
    with pytest.raises(FileRunError, match="is a folder"):
        await bench.run(queue, input=tmp_path)
    with pytest.raises(FileRunError, match="no regular file"):
        await bench.run(queue, input=Path("/dev/null"))
    assert not bench.output.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(b"{}", mtime=0), "gzip"),
        (b"PK\x03\x04...", "zip archive"),
        ("{}\n".encode("utf-16"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
    ],
)
async def test_an_input_of_another_format_is_named_once_and_not_line_by_line(
    bench: Bench, queue: FakeQueue, content: bytes, says: str
) -> None:
    bench.input.write_bytes(content)
    with pytest.raises(FileRunError, match=says):
        await bench.run(queue)
    assert not bench.output.exists()


async def test_what_is_wrong_with_the_files_is_told_before_a_broker_is_needed(bench: Bench) -> None:
    bench.write(*numbered(1))
    with pytest.raises(FileRunError, match="the input itself"):
        FileRun.open(FileRunOptions(input=bench.input, output=bench.input))


@pytest.mark.parametrize("existed", [False, True])
async def test_a_run_that_never_began_leaves_the_folder_as_it_was(bench: Bench, existed: bool) -> None:
    bench.write(*numbered(1))
    if existed:
        bench.output.touch()
    with FileRun.open(FileRunOptions(input=bench.input, output=bench.output)):
        assert bench.output.exists()
    assert bench.output.exists() is existed
    assert not mark_path(bench.output).exists()


async def test_an_output_that_cannot_be_written_is_one_sentence(
    bench: Bench, queue: FakeQueue, tmp_path: Path
) -> None:
    bench.write(*numbered(5))
    with pytest.raises(FileRunError, match="cannot write"):
        await bench.run(queue, output=tmp_path)
    with pytest.raises(FileRunError, match="there is no folder"):
        await bench.run(queue, output=tmp_path / "missing" / "out.jsonl")
    for nameless in (".", "/"):
        with pytest.raises(FileRunError, match="cannot write"):
            await bench.run(queue, output=Path(nameless))
    with pytest.raises(FileRunError, match="no regular file"):
        await bench.run(queue, output=Path("/dev/null"))


async def test_the_input_is_never_written_over(bench: Bench, queue: FakeQueue, tmp_path: Path) -> None:
    bench.write(*numbered(5))
    link = tmp_path / "link"
    link.hardlink_to(bench.input)
    with pytest.raises(FileRunError, match="the input itself"):
        await bench.run(queue, output=link)


async def test_two_runs_do_not_share_an_output(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(5))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue))
    await queue.published(1)
    with pytest.raises(FileRunError, match="another run"):
        await bench.run(queue)
    await queue.set_answering(True)
    assert (await running).done == 5


async def test_an_input_that_grows_meanwhile_is_noticed(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(200))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue))
    await queue.published(1)
    with bench.input.open("ab") as file:
        file.write(request_line("late") + b"\n")
    await queue.set_answering(True)
    with pytest.raises(FileRunError, match="was changed while"):
        await running


@pytest.mark.parametrize("call", ["write", "fsync"])
async def test_a_full_disk_stops_the_run_cleanly_and_it_goes_on_later(
    bench: Bench, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    bench.write(*numbered(100))
    await begin(bench, queue, 10)
    before = bench.output.read_bytes()
    real_write = os.write

    def full(descriptor: int, *data: bytes) -> int:
        if data and len(data[0]) > 5:
            return real_write(descriptor, data[0][:5])  # some bytes still fit
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"headrace.producer.file_run.output_file.os.{call}", full)
        with pytest.raises(FileRunError, match="no space is left"):
            await bench.run(queue)
    assert bench.output.read_bytes() == before
    assert (await bench.run(queue)).done == 100
    assert bench.custom_ids() == sorted(f"id-{n}" for n in range(100))
    assert set(queue.runs.values()) == {1}


async def test_a_line_that_is_larger_than_the_broker_takes_disturbs_no_other(
    bench: Bench, queue: FakeQueue
) -> None:
    queue.largest = 1_000
    bench.write(request_line("a"), request_line("large", "x" * 2_000), request_line("b"))
    summary = await bench.run(queue)
    assert (summary.done, summary.failed) == (2, 1)
    [error] = [line["response"]["body"]["error"] for line in bench.lines() if line["custom_id"] == "large"]
    assert (error["code"], error["line"]) == ("request_too_large", 2)


async def test_the_pulse_of_the_broker_is_felt_by_a_ping_and_nothing_dearer(
    bench: Bench, queue: FakeQueue
) -> None:
    bench.write(*numbered(3))
    await queue.set_answering(False)
    running = asyncio.create_task(bench.run(queue, pulse_s=0.001))
    await queue.pinged.wait()
    await queue.set_answering(True)
    assert (await running).done == 3
    assert queue.looked_up == 0


async def test_a_broker_that_hiccups_is_borne(bench: Bench, queue: FakeQueue) -> None:
    bench.write(*numbered(50))
    queue.outages = 20
    assert (await bench.run(queue)).done == 50


@pytest.mark.parametrize("patient", [True, False])
async def test_a_broker_that_stays_away_ends_the_run_with_one_sentence(
    bench: Bench, queue: FakeQueue, patient: bool
) -> None:
    bench.write(*numbered(50))
    queue.patient = patient
    await queue.set_answering(False)
    policy = RetryPolicy(0.001, 0.001, patience_s=0.02)
    running = asyncio.create_task(bench.run(queue, policy=policy, pulse_s=0.01))
    await queue.published(1)
    await queue.leave()
    with pytest.raises(FileRunError, match="start again once it is back"):
        await running
    queue.away = False
    await queue.set_answering(True)
    assert (await bench.run(queue)).done == 50
