"""Language models of real shapes, built by transformers from their configurations, without weights."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from blank import blank, indices
from torch import nn

from autoaccum import Workload

hf: Any = import_module("transformers")
GPT2, BERT, LLAMA, T5 = (
    hf.GPT2LMHeadModel, hf.BertForMaskedLM, hf.LlamaForCausalLM, hf.T5ForConditionalGeneration
)  # fmt: skip


def _gpt2() -> nn.Module:
    model: nn.Module = GPT2(hf.GPT2Config())
    return model


def _bert() -> nn.Module:
    model: nn.Module = BERT(hf.BertConfig())
    return model


def _llama() -> nn.Module:
    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 20, "num_attention_heads": 16}
    model: nn.Module = LLAMA(hf.LlamaConfig(vocab_size=32000, num_key_value_heads=8, tie_word_embeddings=True, **shape))
    return model


def _llama_in_bf16() -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return _llama()
    finally:
        torch.set_default_dtype(before)


def _t5() -> nn.Module:
    shape = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    model: nn.Module = T5(hf.T5Config(decoder_start_token_id=0, **shape))
    return model


def _adamw_by_parameter(model: nn.Module) -> torch.optim.Optimizer:
    """Give an AdamW whose step takes no memory for all parameters at once."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)


def _texts(size: int, length: int) -> dict[str, torch.Tensor]:
    tokens = indices(size, length)
    return {"input_ids": tokens, "labels": tokens}


def _pairs(size: int) -> dict[str, torch.Tensor]:
    return {"input_ids": indices(size, 384), "labels": indices(size, 96)}


gpt2 = Workload(build_model=blank(_gpt2), make_batch=lambda size: _texts(size, 1024))
bert = Workload(build_model=blank(_bert), make_batch=lambda size: _texts(size, 256))
llama = Workload(
    build_model=blank(_llama), make_batch=lambda size: _texts(size, 512), build_optimizer=_adamw_by_parameter
)
llama_bf16 = Workload(build_model=blank(_llama_in_bf16), make_batch=lambda size: _texts(size, 1024))
t5 = Workload(build_model=blank(_t5), make_batch=_pairs)
