#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two chats about one long document, with and without a prefix cache: how long until the first token of an answer?

    chat_twice.py                               # a small model with random weights: no network, no answers to read
    chat_twice.py --model Qwen/Qwen3-0.6B       # one that transformers has, or can download
    chat_twice.py --directory /tmp/pages        # twice: the second time the first chat is fast, too
"""

import argparse
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from quire.integrations.transformers import prefix_cache

parser = argparse.ArgumentParser(description="Time to the first token of two chats about one document.")
parser.add_argument("--model", help="a name or a folder; without it a small Llama with random weights")
parser.add_argument("--tokens", type=int, default=2000, help="of the document")
parser.add_argument("--directory", help="where pages outlive this process")
options = parser.parse_args()

torch.manual_seed(0)
small = LlamaConfig(vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
                    num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=131072)
make = LlamaForCausalLM if options.model is None else AutoModelForCausalLM.from_pretrained
model = make(options.model or small).to("cuda" if torch.cuda.is_available() else "cpu").eval()
print(f"{type(model).__name__} with {model.num_parameters() / 1e6:.0f} million parameters on {model.device}")
document, first, second = (torch.randint(3, 8000, (1, n), device=model.device) for n in (options.tokens, 20, 30))


def first_token_ms(prompt, cache=None):
    begin = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache, max_new_tokens=1)
    return 1e3 * (time.perf_counter() - begin)


first_token_ms(document[:, :16])  # whatever happens once, happens now
with prefix_cache(model, directory=options.directory) as cache:
    for name, question in (("first", first), ("second", second)):
        prompt = torch.cat([document, question], dim=1)
        without, cached = first_token_ms(prompt), first_token_ms(prompt, cache)
        found = f"{cache.last.reused_tokens} of {cache.last.prompt_tokens} tokens were there"
        print(f"{name:>6} chat: {without:7.0f} ms without, {cached:7.0f} ms with the cache; {found}")
