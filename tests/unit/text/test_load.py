"""Tokenizers of real models: the demo model's GGUF file, and folders written by transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.text.contract import TextError, Tokenizer
from headrace.gpu_engine.text.load import load_tokenizer
from headrace.gpu_engine.text.stream import TextStream
from headrace.gpu_engine.text.tools.formats import MISTRAL
from tests.unit.text.test_detokenize import SCRIPTS
from tests.unit.text.tokenizers_for_tests import byte_level_backend

pytestmark = pytest.mark.slow

CHATML = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]
WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }};{% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.arguments.city }}{% endfor %}"
    "{% endfor %}<assistant>"
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: a small tokenizer with a template, two end tokens, and traps of training settings."""
    path = tmp_path_factory.mktemp("model")
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 7}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    return path


def test_the_demo_model_encodes_as_transformers_does(smollm: Tokenizer, smollm_file: Path) -> None:
    reference = AutoTokenizer.from_pretrained(str(smollm_file.parent), gguf_file=smollm_file.name)
    text = "Hello w\u00f6rld \U0001f600<|im_end|>\n  x"
    assert smollm.encode(text) == reference(text).input_ids
    chat = reference.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert smollm.encode_chat(HELLO) == chat
    assert smollm.eos_ids == {reference.eos_token_id}
    assert smollm.vocab_size == len(reference)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=SCRIPTS, text=SCRIPTS, data=st.data())
def test_the_demo_models_text_is_whole_however_it_is_cut(
    smollm: Tokenizer, prompt: str, text: str, data: st.DataObject
) -> None:
    ids = smollm.encode(text)
    cut = data.draw(st.integers(0, len(ids)))
    stream = TextStream(smollm, smollm.encode(prompt))
    assert "".join([stream.feed(ids[:cut]), stream.feed(ids[cut:]), stream.flush()]) == smollm.decode(ids)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 49_151), max_size=30))
def test_any_ids_of_the_demo_model_give_the_text_of_decode(smollm: Tokenizer, ids: list[int]) -> None:
    stream = TextStream(smollm, ids[:3])
    assert "".join([*(stream.feed([token_id]) for token_id in ids), stream.flush()]) == smollm.decode(ids)


def test_a_folder_gives_all_end_tokens_of_its_files(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.eos_ids == {7, 8, 9, *tokenizer.encode("<|end|>")}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_the_class_of_a_tokenizer_is_the_one_that_transformers_picks_for_the_model_type(
    folder: Path, tmp_path: Path, model_type: str
) -> None:
    """With the same tokenizer.json they split numbers, spaces and line breaks in ways of their own."""
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    (copy / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("tokenizer_class")
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, reference = load_tokenizer(str(copy)), AutoTokenizer.from_pretrained(copy)
    for text in ("12345", "  def f(x):", "a\n\n  b", "caf\u00e9 caf\u0065\u0301", "<|end|> end"):
        assert ours.encode(text) == reference(text, truncation=False, padding=False).input_ids


@pytest.mark.parametrize("content", ["", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [null]}'])
def test_a_file_whose_end_tokens_are_none_is_named(folder: Path, tmp_path: Path, content: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    (copy / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json is wrong \("):
        load_tokenizer(str(copy))


def test_truncation_and_padding_of_a_training_set_up_are_switched_off(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    text = "a rather long text of more than four tokens"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("a")) == 1


def test_the_fingerprint_is_the_same_on_every_load_and_changes_with_the_template(
    folder: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHATML + " "
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    one, same, other = (load_tokenizer(str(path)).fingerprint for path in (folder, folder, tmp_path))
    assert one == same != other


def test_text_parts_reach_a_template_that_knows_only_strings(smollm: Tokenizer) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert smollm.encode_chat(parts) == smollm.encode_chat(HELLO)


def test_what_the_template_refuses_is_an_error_of_the_user(folder: Path) -> None:
    with pytest.raises(TextError, match="template refuses these messages: no tools here"):
        load_tokenizer(str(folder)).encode_chat([{"role": "tool", "content": "x"}])


def test_what_is_nested_too_deeply_for_a_template_is_an_error_of_the_user(mistral: Tokenizer) -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TextError, match="template refuses these messages"):
        mistral.encode_chat(
            HELLO, [{"type": "function", "function": {"name": "weather", "parameters": deep}}]
        )


def test_messages_for_a_model_without_a_template_are_refused(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=byte_level_backend()).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(TextError, match="no chat template; send a text prompt"):
        load_tokenizer(str(tmp_path)).encode_chat(HELLO)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Its mark of calls is a special token."""
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True), AddedToken("[INST]", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = WITH_TOOLS
    path = tmp_path_factory.mktemp("mistral")
    tokenizer.save_pretrained(path)
    (path / "config.json").write_text('{"model_type": "llama"}')
    return load_tokenizer(str(path))


def test_a_template_is_given_the_tools_and_the_arguments_of_calls_as_objects(mistral: Tokenizer) -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": function}]}
    answered = {"role": "tool", "tool_call_id": "a", "content": "rain"}
    text = mistral.decode(mistral.encode_chat([*HELLO, asked, answered], [WEATHER]))
    said, shown = text.split(";", 1)[::-1]
    assert json.loads(shown) == WEATHER
    assert said == "<user>Hello<assistant>[TOOL_CALLS]Oslo<tool>rain<assistant>"


def test_a_special_token_that_marks_a_call_is_text_of_an_answer_and_no_other_is(mistral: Tokenizer) -> None:
    ids = mistral.encode("a[INST][TOOL_CALLS]b<|end|>")
    assert len(ids) == 5
    assert mistral.decode(ids) == "a[TOOL_CALLS]b"
    assert mistral.call_format is MISTRAL


@pytest.mark.parametrize("calls", [5, ["x"], [{}], [{"function": {"arguments": "[]"}}], [{"function": 1}]])
def test_calls_in_a_conversation_that_are_none_are_named(mistral: Tokenizer, calls: object) -> None:
    with pytest.raises(TextError, match="`tool_calls` of message 0"):
        mistral.encode_chat([{"role": "assistant", "content": "", "tool_calls": calls}])


def test_calls_that_a_template_would_leave_out_are_refused(smollm: Tokenizer) -> None:
    call = {"id": "a", "function": {"name": "weather", "arguments": "{}"}}
    with pytest.raises(TextError, match="Message 1 has `tool_calls`, which the model's chat template would"):
        smollm.encode_chat([*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}])


def test_tools_for_a_model_whose_template_knows_none_are_refused(smollm: Tokenizer, folder: Path) -> None:
    assert smollm.call_format is None
    told_so = load_tokenizer(str(folder), tool_call_format="hermes")
    for tokenizer in (smollm, told_so):
        with pytest.raises(TextError, match="Tools cannot be used"):
            tokenizer.encode_chat(HELLO, [WEATHER])


def test_lone_surrogates_are_refused_everywhere(smollm: Tokenizer) -> None:
    with pytest.raises(TextError, match="lone surrogate"):
        smollm.encode("a\ud83d")
    with pytest.raises(TextError, match="lone surrogate"):
        smollm.encode_chat([{"role": "user", "content": "a\ud83d"}])


def test_many_threads_may_encode_at_once(smollm: Tokenizer) -> None:
    texts = [f"text number {n} " * 50 for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(smollm.encode, texts)) == [smollm.encode(text) for text in texts]


@pytest.mark.parametrize(
    ("architecture", "of_text", "of_turn"),
    [("phi3", "<|endoftext|>", "<|end|>"), ("gemma3", "<eos>", "<end_of_turn>")],
)
def test_the_end_of_a_turn_ends_answers_of_a_gguf_file_that_names_only_the_end_of_a_text(
    tmp_path: Path, architecture: str, of_text: str, of_turn: str
) -> None:
    pieces = [*sorted(ByteLevel.alphabet()), "ab"]
    writer = GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*pieces, of_text, of_turn])
    writer.add_token_merges(["a b"])
    writer.add_token_types([TokenType.NORMAL] * len(pieces) + [TokenType.CONTROL] * 2)
    writer.add_eos_token_id(len(pieces))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_tokenizer(str(tmp_path / "model.gguf"))
    assert tokenizer.eos_ids == {*tokenizer.encode_piece(of_text + of_turn)}


def test_a_missing_model_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no-such-folder"):
        load_tokenizer(str(tmp_path / "no-such-folder"))


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF" + bytes(64)], ids=["cut short", "zeros"])
def test_a_broken_gguf_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.gguf cannot be read \(.*\); check"):
        load_tokenizer(str(file))


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 3}'])
def test_a_broken_tokenizer_file_is_one_sentence(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(str(tmp_path))


def test_the_text_modules_themselves_import_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, headrace.gpu_engine.text.load, headrace.gpu_engine.text.stream;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
