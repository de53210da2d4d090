"""A LoRA adapter is a model of its own to those who ask: served, announced, resumed under its own name."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import structs

from headrace.broker.contract import Done, Settlement
from headrace.broker.events import Delta, Failed, Started
from headrace.consumer.errors import EngineSick, EngineUnusable
from headrace.consumer.prepare import Preparer, served_names
from headrace.gpu_engine.api import Ready
from headrace.gpu_engine.text.sim import SimTokenizer
from tests.unit.consumer.fakes import (
    FINGERPRINT,
    NOW_MS,
    QUEUE,
    Rig,
    delivery,
    eventually,
    line,
    settings_for_tests,
)

ADAPTERS = {"sql": "words-1/sql-1", "poems": "words-1/poems-1"}
FOR_SQL = line(model="sql")


def model_in(settlement: Settlement) -> object:
    assert isinstance(settlement, Done)
    assert settlement.line is not None
    return json.loads(settlement.line)["response"]["body"]["model"]


@pytest.mark.parametrize(("model", "adapter"), [("sql", "sql"), ("alias", None), (None, None)])
async def test_the_model_of_a_request_is_its_adapter(model: str | None, adapter: str | None) -> None:
    async with Rig(adapters=ADAPTERS) as rig:
        rig.publish(delivery(body=line() if model is None else line(model=model)))
        request = await rig.engine.get()
        assert request.adapter == adapter
        rig.engine.give(request.id, 65, finish="stop")
        assert model_in(await rig.settled()) == (adapter or "words")
        (started,) = rig.session.starts()
        assert started.fingerprint == (FINGERPRINT if adapter is None else ADAPTERS[adapter])


async def test_adapters_are_announced_behind_the_model() -> None:
    async with Rig(adapters=ADAPTERS) as rig:
        await eventually(lambda: bool(rig.session.announced))
        assert rig.session.announced[0].models == ("words", "sql", "poems")


async def test_an_unknown_adapter_fails_with_the_names_that_there_are() -> None:
    async with Rig(adapters=ADAPTERS) as rig:
        rig.publish(delivery(body=line(model="sqll")))
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert isinstance(settlement.terminal, Failed)
        assert settlement.terminal.code == "model_not_found"
        assert "served: 'words', 'alias', 'sql', 'poems'" in settlement.terminal.message


def interrupted(rig: Rig, fingerprint: str) -> None:
    """The log of r1, for the adapter, as a killed owner left it."""
    body_hash = delivery(body=FOR_SQL).message.body_hash
    rig.session.logs["r1"] = [
        Started(1, "old", f"{QUEUE}/r1", 42, body_hash, fingerprint, at_ms=NOW_MS - 3),
        Delta(1, 0, (65, 66), "AB"),
    ]
    rig.session.epochs["r1"] = 1


async def test_an_answer_goes_on_with_the_same_adapter() -> None:
    async with Rig(adapters=ADAPTERS) as rig:
        interrupted(rig, ADAPTERS["sql"])
        rig.publish(delivery(body=FOR_SQL))
        request = await rig.engine.get()
        assert (request.adapter, request.output_ids, request.params.seed) == ("sql", [65, 66], 42)
        rig.engine.give(request.id, 67, finish="stop")
        await rig.settled()
        assert (rig.session.fold().text, rig.session.fold().restarts) == ("ABC", 0)


@pytest.mark.parametrize("before", ["words-1/sql-0", FINGERPRINT, ADAPTERS["poems"]])
async def test_tokens_of_other_weights_under_the_same_name_are_not_continued(before: str) -> None:
    """An older adapter; the bare model or another adapter, where it had the name."""
    async with Rig(adapters=ADAPTERS) as rig:
        interrupted(rig, before)
        rig.publish(delivery(body=FOR_SQL))
        request = await rig.engine.get()
        assert (request.adapter, request.output_ids) == ("sql", [])
        rig.engine.give(request.id, 90, finish="stop")
        await rig.settled()
        assert (rig.session.fold().text, rig.session.fold().restarts) == ("Z", 1)


async def test_an_adapter_with_a_name_of_the_models_ends_the_start() -> None:
    async with Rig(adapters={"words": "x"}) as rig:
        with pytest.raises(EngineUnusable, match="The LoRA adapter words has a name of the model's"):
            await asyncio.wait_for(rig.task, 5)


async def test_an_adapter_is_shown_although_a_folder_has_its_name() -> None:
    """Names of folders are the machine's own business, but for those that the operator has given."""
    rig = Rig(settings_for_tests(), adapters={"/tmp": "x"})
    names = served_names(rig.settings, rig.info)
    preparer = Preparer(SimTokenizer(), [*names, "/"], adapters=rig.info.adapters)
    assert preparer.shown == ("words", "/tmp")
    preparer.close()
    rig.preparer.close()


async def test_adapters_that_changed_their_names_while_the_engine_started_anew_end_the_consumer() -> None:
    async with Rig(adapters=ADAPTERS) as rig:
        await eventually(lambda: bool(rig.session.announced))
        swapped = dict(zip(ADAPTERS, reversed(ADAPTERS.values()), strict=True))
        rig.first_words = Ready(structs.replace(rig.info, adapters=swapped))
        rig.engine.die()
        with pytest.raises(EngineSick, match="files changed while it was served"):
            await asyncio.wait_for(rig.task, 5)
