# SPDX-License-Identifier: Apache-2.0
"""A prefix cache for models of Hugging Face transformers.

    cache = prefix_cache(model, directory="/var/cache/quire")
    model.generate(**inputs, past_key_values=cache)   # computes everything, and remembers it
    model.generate(**inputs, past_key_values=cache)   # computes the last tokens only; so does the next process

How it works. While a call of generate() runs, K and V lie in plain tensors, as in transformers' own DynamicCache, and
beams, crops and masks are theirs. Before the call, the longest known prefix of each row is copied out of quire's pages;
behind it, what was computed is copied in. The pages are quire's: they are shared between prompts, go to the host and to
disk when the device has no room, and are found again by the next process.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
import weakref
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache

import quire
from quire.integrations._layers import Layer, Row, WindowLayer
from quire.integrations._prefix_store import FoundPrefix, PrefixStore

__all__ = ["PrefixCache", "LastCall", "prefix_cache"]

# The first version that the tests passed with, and the first one that they were not run with. See also pyproject.toml.
_TESTED = ((5, 14), (5, 23))


@dataclasses.dataclass
class LastCall:
    """What became of the last call of generate()."""

    prompt_tokens: int = 0  #: of all rows, without padding
    reused_tokens: int = 0  #: of them, those that were not computed
    published_tokens: int = 0  #: that others can find now and could not before


def prefix_cache(
    model: Any,
    *,
    device_bytes: int = 1 << 30,
    host_bytes: int = 0,
    directory: str | os.PathLike[str] | None = None,
    disk_bytes: int = 16 << 30,
    page_tokens: int = 16,
    policy: str = "lru",
    identity: str | None = None,
    salt: str = "",
) -> PrefixCache:
    """A cache for `model.generate(…, past_key_values=cache)`, which the model is prepared for.

    device_bytes: pages where the model runs. host_bytes: pages in memory of the processor's that have no room there;
        0: none, or as many as device_bytes when there is a directory.
    directory: pages that outlive the process, at most disk_bytes of them. It belongs to one model.
    identity: names the weights. Without it they are summed up, which takes a second or two for each GB on a processor.
    salt: keeps tenants apart that must not share, or learn that others sent the same prompt.

    Raises quire.Unsupported for models whose layers it cannot hold, naming the layer.
    """
    _check_version(transformers.__version__)
    return PrefixCache(
        model,
        PrefixStore(
            model,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            directory=None if directory is None else os.fspath(directory),
            disk_bytes=disk_bytes,
            page_tokens=page_tokens,
            policy=policy,
            identity=identity,
            salt=salt,
        ),
    )


def _check_version(version: str) -> None:
    """What generate() does with a cache is not written down anywhere, and has changed between versions."""
    first, end = _TESTED
    if not first <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < end:
        warnings.warn(
            f"transformers {version} is not one that prefix_cache() was tested with: compare answers with and without "
            f"the cache, or install 'transformers>={first[0]}.{first[1]},<{end[0]}.{end[1]}'",
            stacklevel=3,
        )


class PrefixCache(Cache):
    """`past_key_values` of a model, see prefix_cache(). One call of generate() at a time.

    Outside of generate(), start() looks for a prompt's prefix, and finish() remembers what was computed:

        reused = cache.start(input_ids, attention_mask)
        model(input_ids[:, reused:], attention_mask=attention_mask, past_key_values=cache)
        cache.finish()
    """

    def __init__(self, model: Any, store: PrefixStore) -> None:
        super().__init__(layers=[])
        self._store = store
        self.last = LastCall()
        self._tokens: torch.Tensor | None = None  # [row][column], as far as columns are held
        self._incoming: torch.Tensor | None = None
        self._whole_columns: int | None = None  # of the prompt, until the first forward pass behind a found prefix
        self._paddings: list[int] = []
        self._is_known = True  # every token that was computed was seen, and stood where it seemed to
        self._is_wrong: torch.Tensor | None = None  # the same, as the device found it
        self._clear()
        self._model = weakref.ref(model)
        self._hook = model.register_forward_pre_hook(_make_hook(weakref.ref(self)), with_kwargs=True)
        self._own_generate = model.__dict__.get("generate")
        model.generate = _make_generate(model.generate, weakref.ref(self))
        self._finalizer = weakref.finalize(self, PrefixStore.close, store)

    # Life.

    def close(self) -> None:
        """Writes what is not on disk yet, closes the files, and leaves the model as it was."""
        self._clear()
        model = self._model()
        if model is not None and self._hook is not None:
            self._hook.remove()
            if self._own_generate is None:
                model.__dict__.pop("generate", None)
            else:
                model.generate = self._own_generate
        self._hook = None
        self._finalizer()

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def quire(self) -> quire.Cache:
        """The cache below: its stats(), its tree."""
        return self._store.cache

    def __repr__(self) -> str:
        return f"PrefixCache({self._store.cache!r}, last={self.last!r})"

    # A call of generate().

    def start(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> int:
        """Looks for the prefixes of these rows. Gives the number of columns that need no computing."""
        self._clear()
        self.last = LastCall()
        rows, columns = input_ids.shape
        self._paddings = _paddings(input_ids, attention_mask)
        tokens = input_ids.detach().to("cpu", torch.int64).contiguous()
        self.last.prompt_tokens = sum(columns - padding for padding in self._paddings)
        limit = columns - 1  # the last one is always computed: somebody wants to know what follows it
        while True:  # until all rows can go on at the same column
            found = [
                self._store.find(tokens[row, padding:], limit - padding) if padding < limit else None
                for row, padding in enumerate(self._paddings)
            ]
            reached = min(
                max(padding + (prefix.tokens if prefix else 0), min(padding, limit))
                for prefix, padding in zip(found, self._paddings)
            )
            reached = min(reached, limit)
            if reached < limit and not self._store.has_windows:
                for prefix, padding in zip(found, self._paddings):
                    if prefix is not None:
                        prefix.cut(max(0, reached - padding))
                limit = reached
            if reached == limit:
                break
            limit = reached
        if limit > 0 and any(prefix is not None for prefix in found):
            self._begin(found, rows, limit)
            self._tokens = tokens[:, :limit].to(self._store.device)
            self._whole_columns = columns
            self.last.reused_tokens = sum(max(0, limit - padding) for padding in self._paddings)
            return limit
        return 0

    def _begin(self, found: list[FoundPrefix | None], rows: int, columns: int) -> None:
        """Layers of `columns` columns: each row's padding, then its prefix."""
        store = self._store
        for index, (layer, shape) in enumerate(zip(self.layers, store.shapes)):
            first = max(0, columns - shape.window + 1) if shape.window else 0
            if rows == 1 and self._paddings[0] == 0 and found[0] is not None:
                keys = found[0].keys[index][None, :, first - columns :]
                values = found[0].values[index][None, :, first - columns :]
                self._begin_layer(layer, keys, values, columns)
                continue
            size = (rows, shape.heads, columns - first)
            keys = torch.zeros((*size, shape.key_dim), dtype=store.dtype, device=store.device)
            values = torch.zeros((*size, shape.value_dim), dtype=store.dtype, device=store.device)
            for row, (prefix, padding) in enumerate(zip(found, self._paddings)):
                begin = max(first, padding)
                if prefix is None or begin >= columns:
                    continue
                # What a prefix has of a window begins where that of its last token does.
                held = prefix.tokens - prefix.keys[index].shape[1]
                part = slice(begin - padding - held, columns - padding - held)
                keys[row, :, begin - first :] = prefix.keys[index][:, part]
                values[row, :, begin - first :] = prefix.values[index][:, part]
            self._begin_layer(layer, keys, values, columns)

    @staticmethod
    def _begin_layer(layer: Layer, keys: torch.Tensor, values: torch.Tensor, columns: int) -> None:
        if isinstance(layer, WindowLayer):
            layer.begin_at(keys, values, columns)
        else:
            layer.begin(keys, values)

    def finish(self) -> int:
        """Remembers what was computed since start(). Gives the number of tokens that others could not find before."""
        try:
            self._remember()
        finally:
            self._clear()
        return self.last.published_tokens

    def _remember(self) -> None:
        tokens = self._tokens
        if tokens is None or not self._is_known or (self._is_wrong is not None and bool(self._is_wrong)):
            return
        tokens = tokens.to("cpu")
        if any(layer.get_seq_length() != tokens.shape[1] for layer in self.layers):
            return  # a forward pass broke off in the middle
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        seen = set()
        for row in range(tokens.shape[0]):
            padding = self._paddings[row]
            own = tokens[row, padding:].contiguous()
            name = own.numpy().tobytes()
            if name in seen:
                continue
            seen.add(name)
            self.last.published_tokens += self._store.publish(own, Row(layers, row, padding))
        self._store.poll()

    def _clear(self) -> None:
        self.layers = [WindowLayer(shape.window) if shape.window else Layer() for shape in self._store.shapes]
        self._tokens = self._incoming = None
        self._whole_columns = None
        self._paddings = []
        self._is_known = True
        self._is_wrong = None

    # Tokens follow K and V.

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == 0:
            self._take_tokens(key_states.shape[0], key_states.shape[-2])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _take_tokens(self, rows: int, count: int) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or tuple(incoming.shape) != (rows, count):
            self._is_known = False
            return
        self._tokens = incoming if self._tokens is None else torch.cat([self._tokens, incoming], dim=1)

    def _expand_to(self, rows: int) -> None:
        """Rows became beams, or answers of one prompt, since their prefixes were looked for."""
        if not self._paddings:
            self._paddings = [0] * rows
        repeats, rest = divmod(rows, len(self._paddings))
        if rest or not repeats:
            self._is_known = False
        elif repeats > 1:
            self.batch_repeat_interleave(repeats)

    def _before_forward(self, tokens: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Sees what a forward pass is given. Tokens that are there already are taken out."""
        self._incoming = None
        if tokens is None or tokens.ndim != 2:
            self._is_known = False
            return tokens
        self._expand_to(tokens.shape[0])
        held = self.get_seq_length()
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        whole_columns, self._whole_columns = self._whole_columns, None
        if held and whole_columns is not None and tokens.shape[1] >= whole_columns:
            # Assisted decoding begins with the whole prompt, whatever the cache has of it.
            if positions is not None and positions.shape[-1] == tokens.shape[1]:
                positions = kwargs["position_ids"] = positions[..., held:]
            tokens = tokens[:, held:]
        self._incoming = tokens.detach().long()
        self._check_places(held, tokens.shape[1], mask, positions)
        return tokens

    def _check_places(self, held: int, count: int, mask: Any, positions: Any) -> None:
        """K depends on where a token stands and on what it sees: if that is not as it seems, nothing is remembered."""
        is_padded = any(self._paddings)
        if (mask is None or positions is None) and is_padded:
            self._is_known = False
            return
        if mask is not None and (mask.ndim != 2 or mask.shape[1] != held + count):
            self._is_known = False
            return
        device = self._incoming.device
        paddings = torch.tensor(self._paddings, device=device)[:, None]
        wrong = torch.zeros((), dtype=torch.bool, device=device)
        if mask is not None:
            columns = torch.arange(held + count, device=device)[None]
            wrong |= ((mask.to(device) != 0) != (columns >= paddings)).any()
        if positions is not None:
            if positions.ndim != 2 or positions.shape[1] != count:
                self._is_known = False
                return
            places = torch.arange(held, held + count, device=device)[None] - paddings
            wrong |= ((positions.to(device) != places) & (places >= 0)).any()
        self._is_wrong = wrong if self._is_wrong is None else self._is_wrong | wrong  # looked at in finish()

    def _select(self, rows: list[int]) -> None:
        self._paddings = [self._paddings[row] for row in rows] if self._paddings else []
        if self._tokens is not None:
            self._tokens = self._tokens[torch.tensor(rows, device=self._tokens.device)]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._select(torch.arange(len(self._paddings))[indices.cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._select([row for row in range(len(self._paddings)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        length = self.get_seq_length()
        # A positive number is what older versions of transformers mean by a length to keep.
        removed = -tokens_to_remove if tokens_to_remove <= 0 else max(0, length - tokens_to_remove)
        removed = min(removed, length)
        for layer in self.layers:
            layer.shorten(removed)
        if self._tokens is not None:
            self._tokens = self._tokens[:, : self._tokens.shape[1] - removed]

    def reset(self) -> None:
        self._clear()


def _paddings(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[int]:
    """Padding columns in front of each row."""
    if input_ids.ndim != 2:
        raise quire.InvalidArgument(f"input_ids has {input_ids.ndim} dimensions: give [row][column]")
    if attention_mask is None:
        return [0] * input_ids.shape[0]
    if tuple(attention_mask.shape) != tuple(input_ids.shape):
        raise quire.Unsupported(
            f"attention_mask is {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}: give a mask of "
            "[row][column] with the whole prompt"
        )
    mask = attention_mask.detach().to("cpu") != 0
    paddings = (~mask).sum(dim=1).tolist()
    for row, padding in enumerate(paddings):
        if not bool(mask[row, padding:].all()):
            raise quire.Unsupported(
                f"row {row} of attention_mask has padding behind tokens: pad on the left (tokenizer.padding_side='left')"
            )
    return [int(padding) for padding in paddings]


def _make_hook(reference: weakref.ref[PrefixCache]) -> Any:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache = reference()
        if cache is None or kwargs.get("past_key_values") is not cache:
            return None
        kwargs = dict(kwargs)
        if "input_ids" in kwargs or not args:
            kwargs["input_ids"] = cache._before_forward(kwargs.get("input_ids"), kwargs)
        else:
            args = (cache._before_forward(args[0], kwargs), *args[1:])
        return args, kwargs

    return hook


def _make_generate(generate: Any, reference: weakref.ref[PrefixCache]) -> Any:
    @functools.wraps(generate)
    def generate_with_prefixes(inputs: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        cache = reference()
        if cache is None or kwargs.get("past_key_values") is not cache:
            return generate(inputs, *args, **kwargs) if inputs is not None else generate(*args, **kwargs)
        input_ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
        for name in ("inputs_embeds", "position_ids", "pixel_values", "input_features"):
            if kwargs.get(name) is not None:
                raise quire.Unsupported(f"generate() was given {name}: a prefix cache finds prompts by their input_ids")
        if input_ids is None:
            raise quire.InvalidArgument("generate() was given no input_ids: a prefix cache finds prompts by them")
        model = cache._model()
        config = kwargs.get("generation_config") or (model.generation_config if model is not None else None)
        if kwargs.get("prefill_chunk_size", getattr(config, "prefill_chunk_size", None)) is not None:
            raise quire.Unsupported(
                "prefill_chunk_size is set: transformers then computes the prompt from its first token on, whatever the "
                "cache has of it; leave it out"
            )
        mask = kwargs.get("attention_mask")
        if mask is None:
            mask = kwargs["attention_mask"] = _mask_of(cache, input_ids, kwargs)
        cache.start(input_ids, mask)
        try:
            output = generate(input_ids, *args, **kwargs)
        except BaseException:
            cache._clear()
            raise
        cache.finish()
        return output

    return generate_with_prefixes


def _mask_of(cache: PrefixCache, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """The mask that generate() would make up: padding is what says so and is no end of a text."""
    model = cache._model()
    config = kwargs.get("generation_config") or (model.generation_config if model is not None else None)
    pad = kwargs.get("pad_token_id", getattr(config, "pad_token_id", None))
    end = kwargs.get("eos_token_id", getattr(config, "eos_token_id", None))
    ends = end if isinstance(end, (list, tuple)) else [end]
    if pad is None or pad in ends:
        return torch.ones_like(input_ids)
    return (input_ids != pad).long()
