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
parser.add_argument("--device", default="cpu")
arguments = parser.parse_args()

torch.manual_seed(0)
if arguments.model:
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto")
else:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
                                         num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=131072))
model = model.to(arguments.device).eval()
print(f"{type(model).__name__} with {model.num_parameters() / 1e6:.0f} million parameters on {arguments.device}")
document, first, second = (torch.randint(3, 8000, (1, n), device=arguments.device) for n in (arguments.tokens, 20, 30))


def chat(question: torch.Tensor, cache=None) -> float:
    prompt = torch.cat([document, question], dim=1)
    begin = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache, max_new_tokens=1,
                   do_sample=False, pad_token_id=0)
    return time.perf_counter() - begin


chat(document[:, :16])  # whatever happens once, happens now
with prefix_cache(model, directory=arguments.directory) as cache:
    for name, question in (("first", first), ("second", second)):
        without, with_cache = chat(question), chat(question, cache)
        found = f"{cache.last.reused_tokens} of {cache.last.prompt_tokens} tokens were there"
        print(f"{name:>6} chat: {without * 1e3:7.0f} ms without, {with_cache * 1e3:7.0f} ms with the cache; {found}",
              flush=True)
