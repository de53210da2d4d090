"""Small tokenizers without files of the two kinds in use: byte-level BPE, sentencepiece with byte tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headrace.gpu_engine.text.hf import is_local

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Caf\u00e9 na\u00efve fa\u00e7ade \u2014 d\u00e9j\u00e0 vu.",
    "\u6771\u4eac\u90fd \u6f22\u5b57\u3068\u4eee\u540d",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 n\u0303",
    "  def f(x):\n        return x\n",
] * 4


class PlainTokenizer:
    """Both directions of a `tokenizers.Tokenizer`, special tokens left out of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.pieces: dict[int, str] | None = {} if is_local(tokenizer.decoder) else None

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def id_of(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        assert token_id is not None, token
        return int(token_id)


def byte_level_tokenizer() -> PlainTokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM: tokens are pieces of UTF-8, cut anywhere."""
    return PlainTokenizer(byte_level_backend())


def byte_level_backend() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def sentencepiece_tokenizer() -> PlainTokenizer:
    """As Llama 2 and Mistral: words begin with a marked space, unknown characters are byte tokens."""
    words = ["\u2581", "\u2581Hello", "\u2581world", "lo", "a", "b", "\u2581a", "\n", "!"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    return PlainTokenizer(tokenizer)
