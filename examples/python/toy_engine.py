# SPDX-License-Identifier: Apache-2.0
"""A transformer with random weights, and an engine around it: NumPy, a cache, and nothing else.

A step runs its tokens one after the other, so that its floats are those of as many steps of one token: however a text
is cut into steps, and whoever computed the first part of it, the logits are the same bit for bit.
"""

import hashlib

import numpy as np
import quire

LAYERS, HEADS, DIM, VOCAB, PAGE = 4, 4, 32, 256, 16
WIDTH = HEADS * DIM


class Model:
    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.embed = random.normal(size=(VOCAB, WIDTH)).astype(np.float32)
        self.unembed = random.normal(size=(VOCAB, WIDTH)).astype(np.float32)
        self.weights = (random.normal(size=(4, LAYERS, WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        self.places = np.exp(-np.arange(WIDTH) / 12)

    def logits(self, token, position, remember):
        """What follows a token. remember(layer, k, v) notes K and V of it, and gives those of all up to it."""
        x = self.embed[token] + np.sin(position * self.places).astype(np.float32)
        for layer, (wq, wk, wv, wo) in enumerate(zip(*self.weights)):
            x = x / np.sqrt((x * x).mean())
            q, k, v = ((x @ w).reshape(HEADS, DIM) for w in (wq, wk, wv))
            keys, values = remember(layer, k, v)
            scores = np.einsum("hd,khd->hk", q, keys) / np.float32(DIM**0.5)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            x = x + np.einsum("hk,khd->hd", shares, values).reshape(WIDTH) @ wo
        return self.unembed @ (x / np.sqrt((x * x).mean()))


class Engine:
    def __init__(self, page_count, step_tokens, seed):
        shape = quire.SimpleShape(name="toy", layers=LAYERS, kv_heads=HEADS, head_dim=DIM)
        shape.element = quire.ElementType.Fp32
        config = quire.CacheConfig(layout=quire.ModelLayout.simple(shape), page=quire.PageOptions(page_tokens=PAGE))
        config.device.page_count = page_count
        config.plan.page_tables = quire.PageTables.Csr
        # Else a page would go as soon as it is full and another sequence has computed the same. Here a page that a step
        # has written stays where it is as long as its sequence lives, for others to read.
        config.dedup = False
        self.cache = quire.Cache.open(config)
        self.space = self.cache.key_space(quire.KeySpace(model=f"toy {seed}"))
        self.model = Model(seed)
        self.step_tokens = step_tokens
        self.pool = np.asarray(self.cache.device_memory())
        self.keys, self.values = (np.asarray(self.cache.component_memory(0, name)) for name in "kv")

    def start(self, prompt):
        # What another cache sends goes behind whole pages: of a prefix that ends inside one, a step makes a copy first.
        options = quire.SequenceOptions(match_tokens_max=len(prompt) // PAGE * PAGE)
        sequence = self.cache.begin(self.space, prompt, options)
        self.cache.admit(sequence)
        return sequence

    def plan(self, sequence):
        pending = self.cache.view(sequence).pending_tokens
        outcome = self.cache.plan_step([quire.StepEntry(sequence=sequence, token_count=min(pending, self.step_tokens))])
        if outcome.step is None:
            raise MemoryError(f"the pool is too small: {outcome.shortage}")
        return outcome.step

    def run(self, step):
        """The step of one sequence: the logits behind its last token."""
        plan, group = step.plan, step.plan.groups[0]
        pages = group.page_indices[group.levels[0].page_indptr[0] : group.levels[0].page_indptr[1]]
        self.cache.apply_copies(step)
        for token, position, slot in zip(plan.entries[0].tokens, plan.query_positions, plan.append_slots):

            def remember(layer, k, v, slot=slot, length=position + 1):
                if slot != quire.NO_SLOT:  # else the token runs again, and what it has stored may be others' too
                    page, place = divmod(slot, PAGE)
                    self.keys[page, layer, place], self.values[page, layer, place] = k, v
                seen = pages[: -(-length // PAGE)]
                return (pool[seen, layer].reshape(-1, HEADS, DIM)[:length] for pool in (self.keys, self.values))

            logits = self.model.logits(token, position, remember)
        return logits

    def generate(self, sequence, token_count, between_steps=lambda: None):
        """Computes what is pending, and goes on: tokens, and the logits they were taken from."""
        tokens, rows = [], []
        while len(tokens) < token_count:
            between_steps()
            step = self.plan(sequence)
            logits = self.run(step)
            is_last = step.plan.token_count == self.cache.view(sequence).token_count - step.plan.entries[0].position
            if is_last:
                tokens.append(int(logits.argmax()))
                rows.append(logits)
            self.cache.finish_step(step, [tokens[-1] if is_last else None])
        return tokens, np.array(rows)

    # Where bytes lie, for those that move them.

    def page_pieces(self, slot, token_count):
        """(offset in the pool, bytes) of tokens of one page, layer by layer."""
        page, place = divmod(slot, PAGE)
        base = self.pool.ctypes.data
        return [
            (rows.ctypes.data - base + page * rows.strides[0] + layer * rows.strides[1] + place * rows.strides[2],
             token_count * rows.strides[2])
            for layer in range(LAYERS)
            for rows in (self.keys, self.values)
        ]

    def checksum(self, slot, token_count):
        """Of the bytes of tokens of one page."""
        sum_of = hashlib.blake2b(digest_size=16)
        for offset, length in self.page_pieces(slot, token_count):
            sum_of.update(self.pool[offset : offset + length])
        return sum_of.hexdigest()

    def stores(self):
        """What has to be the same on both sides for K and V to mean the same: layout and weights."""
        weights = hashlib.blake2b(b"".join(part.tobytes() for part in vars(self.model).values()), digest_size=16)
        return f"float32 [{LAYERS}][{PAGE}][{HEADS}][{DIM}] at {self.keys.strides[:3]}, weights {weights.hexdigest()}"
