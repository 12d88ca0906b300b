# SPDX-License-Identifier: Apache-2.0
"""A prefix cache that is used where, when or how it cannot be says so, and leaves model, cache and directory intact."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from test_transformers import make_model, prefix_cache, torch, transformers

import quire

pytestmark = pytest.mark.needs_transformers
SMALL = dict(device_bytes=8 << 20)


def test_layers_that_take_no_cache_are_refused() -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=50, n_embd=32, n_layer=2, n_head=2)
    with pytest.raises(quire.Unsupported, match="layer 0 of OpenAIGPTLMHeadModel left nothing in past_key_values"):
        prefix_cache(transformers.OpenAIGPTLMHeadModel(config))


def test_looking_at_a_model_keeps_what_is_in_training() -> None:
    model = make_model("llama").train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    prefix_cache(model, **SMALL).close()
    assert [module.training for module in model.modules()] == before
    model.model.layers[2].register_forward_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prefix_cache(model, **SMALL)
    assert [module.training for module in model.modules()] == before


# ── directories and identities ───────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_in_use_says_what_to_close(tmp_path: Any) -> None:
    model = make_model("llama")
    with prefix_cache(model, directory=tmp_path, **SMALL):
        with pytest.raises(quire.Unavailable, match="close the earlier cache first"):
            prefix_cache(model, directory=tmp_path, **SMALL)
    prefix_cache(model, directory=tmp_path, **SMALL).close()


def test_a_cache_that_cannot_be_opened_claims_no_directory(tmp_path: Any) -> None:
    model = make_model("llama")
    with pytest.raises(quire.InvalidArgument, match="page_tokens is 4"):
        prefix_cache(model, directory=tmp_path, page_tokens=4, **SMALL)
    prefix_cache(model, directory=tmp_path, **SMALL).close()


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{}"])
def test_a_directory_whose_description_is_damaged_is_refused(text: str, tmp_path: Any) -> None:
    (tmp_path / "model.json").write_text(text, encoding="utf-8")
    with pytest.raises(quire.Corrupt, match=r"model.json .*: delete it with the pages beside it"):
        prefix_cache(make_model("llama"), directory=tmp_path, **SMALL)


def test_what_changes_no_k_and_v_changes_no_identity(tmp_path: Any) -> None:
    model = make_model("llama")
    prefix_cache(model, directory=tmp_path / "pages", **SMALL).close()
    model.config.pad_token_id, model.config.use_cache = 5, False
    prefix_cache(model, directory=tmp_path / "pages", **SMALL).close()
    model.save_pretrained(tmp_path / "model")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    prefix_cache(again, directory=tmp_path / "pages", **SMALL).close()
    described = json.loads((tmp_path / "pages" / "model.json").read_text(encoding="utf-8"))
    assert described["model"] == "LlamaForCausalLM"


def test_an_identity_does_not_hide_another_configuration(tmp_path: Any) -> None:
    prefix_cache(make_model("llama"), directory=tmp_path, identity="v1", **SMALL).close()
    other = make_model("llama", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    with pytest.raises(quire.InvalidArgument, match="another configuration"):
        prefix_cache(other, directory=tmp_path, identity="v1", **SMALL)
    with pytest.raises(quire.InvalidArgument, match="other weights"):
        prefix_cache(make_model("llama"), directory=tmp_path, identity="v2", **SMALL)


def test_weights_of_any_size_and_place_are_told_apart(tmp_path: Any) -> None:
    model = make_model("llama")
    model.register_buffer("scale", torch.ones(1, dtype=torch.float16))
    model.register_buffer("nothing", torch.ones(0))
    storage = torch.zeros(65)
    model.model.norm.weight = torch.nn.Parameter(storage[1:].copy_(model.model.norm.weight.detach()))
    prefix_cache(model, directory=tmp_path, **SMALL).close()
    prefix_cache(copy.deepcopy(model), directory=tmp_path, **SMALL).close()
    model.scale += 1
    with pytest.raises(quire.InvalidArgument, match="other weights"):
        prefix_cache(model, directory=tmp_path, **SMALL)
