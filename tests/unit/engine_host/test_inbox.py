"""What is read from the pipe, whatever pieces it comes in."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from headrace.gpu_engine.frames import Frames, header
from headrace.gpu_engine.inbox import Inbox


@pytest.mark.parametrize("length", [0, 1, 0x7FFFFFFF, 0x80000000])
def test_a_header_is_that_of_multiprocessing(length: int) -> None:
    short = length < 0x80000000
    assert header(length) == (
        length.to_bytes(4, "big") if short else b"\xff\xff\xff\xff" + length.to_bytes(8, "big")
    )


@pytest.mark.parametrize("head", [header(5), b"\xff\xff\xff\xff" + (5).to_bytes(8, "big")])
def test_frames_come_out_whole_though_each_byte_comes_alone(head: bytes) -> None:
    frames = Frames()
    taken = []
    for byte in (head + b"first") * 2:
        frames.feed(bytes([byte]))
        taken.append(frames.take())
    rest = [None] * (len(head) + 4)
    assert taken == [*rest, b"first", *rest, b"first"]


def test_all_that_has_arrived_is_received_in_order() -> None:
    mine, theirs = multiprocessing.Pipe(duplex=True)
    inbox = Inbox(theirs)
    for number in range(50):
        mine.send_bytes(b"%d" % number)
    assert inbox.receive(10.0) == [b"%d" % number for number in range(50)]
    assert inbox.receive(0.0) == []


def test_a_message_larger_than_the_pipe_arrives_whole() -> None:
    mine, theirs = multiprocessing.Pipe(duplex=True)
    inbox, large = Inbox(theirs), os.urandom(3_000_000)
    sender = threading.Thread(target=mine.send_bytes, args=(large,))
    sender.start()
    received: list[bytes] = []
    while not received:
        received = inbox.receive(10.0)
    sender.join()
    assert received == [large]


def test_an_end_is_told_at_once() -> None:
    mine, theirs = multiprocessing.Pipe(duplex=True)
    inbox = Inbox(theirs)
    mine.send_bytes(b"last words")
    mine.close()
    with pytest.raises(EOFError):
        inbox.receive(10.0)
