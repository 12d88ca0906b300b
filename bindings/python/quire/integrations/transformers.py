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

import atexit
import contextlib
import dataclasses
import functools
import operator
import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache, DynamicCache

import quire
from quire.integrations._generate import ServedCache, attach, detach
from quire.integrations._identity import CannotShare, settings_of_torch
from quire.integrations._layers import Layer, Row, WindowLayer
from quire.integrations._prefix_store import FoundPrefix, PrefixStore
from quire.integrations._virtual import VirtualTokens, kind_of_virtual_tokens, virtual_tokens_of
from quire.integrations._prompts import OF_FORWARD, check_tokens, paddings_of, prompt_of, refuse_others

__all__ = ["PrefixCache", "LastCall", "prefix_cache"]

# The first version that the tests passed with, and the first one that they were not run with. See also pyproject.toml.
_TESTED = ((5, 14), (5, 24))

_BROKE_OFF = "a forward pass broke off"
_OTHER_SETTINGS = "torch was told something else than at start() (a precision, kernels, the default type)"


@dataclasses.dataclass
class LastCall:
    """What became of the last call of generate()."""

    prompt_tokens: int = 0  #: of all rows, without padding
    reused_tokens: int = 0  #: of them, those that were not computed
    published_tokens: int = 0  #: that others can find now and could not before
    error: str = ""  #: why what was computed is not remembered


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
    allow_hooks: bool = False,
    allow_changes: Iterable[str] = (),
    check_all_weights: bool = False,
) -> PrefixCache:
    """A cache for `model.generate(…, past_key_values=cache)`, which the model is prepared for.

    device_bytes: pages where the model runs, among them all of any one prefix that is used again. host_bytes: pages in
        memory of the processor's that have no room there; 0: none, or as many as device_bytes when there is a directory.
    directory: pages that outlive the process, at most disk_bytes of them. It belongs to one model.
    identity: names the weights. Without it they are summed up, which takes a second or two for each GB on a processor.
    salt: keeps tenants apart that must not share, or learn that others sent the same prompt.
    allow_hooks: forward hooks of the model's modules are known to leave K and V as they are; else hooks are refused.
    allow_changes: attributes that may change and that K and V are known not to depend on, by their path in the model, such
        as "model.layers.*.self_attn.last_scores"; else a change of any attribute is refused.
    check_all_weights: each call sums up all weights, so that it notices any write to them; else each call looks at what
        torch counts of writes, and at a few elements of each tensor.

    The model may be a PeftModel. Each set of active adapters has pages of its own.

    Raises quire.Unsupported for models whose layers it cannot hold, naming the layer.
    """
    _check_version(transformers.__version__)
    model = _check_model(model)
    sizes = dict(device_bytes=device_bytes, host_bytes=host_bytes, disk_bytes=disk_bytes, page_tokens=page_tokens)
    for name, size in sizes.items():
        sizes[name] = _check_size(name, size)
    for name, text in (("policy", policy), ("identity", identity), ("salt", salt)):
        if not isinstance(text, str) and (name, text) != ("identity", None):
            raise TypeError(f"{name} is {text!r}: give a string")
    store = PrefixStore(
        model,
        **sizes,
        directory=None if directory is None else os.fspath(directory),
        policy=policy,
        identity=identity,
        salt=salt,
        allow_hooks=bool(allow_hooks),
        allow_changes=_check_patterns(allow_changes),
        check_all_weights=bool(check_all_weights),
    )
    try:
        return PrefixCache(model, store)
    except BaseException:
        store.close()
        raise


def _check_model(model: Any) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is {model!r:.100}: give the model itself, such as AutoModelForCausalLM.from_pretrained(…) returns"
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile(model), which generate() does not run
    if callable(getattr(model, "get_base_model", None)):  # PEFT's: its generate() runs that of the model inside
        kind_of_virtual_tokens(model)
        model = model.get_base_model()
    if not callable(getattr(model, "generate", None)):
        raise quire.Unsupported(
            f"{type(model).__name__} has no generate(): give the model that has it, such as a …ForCausalLM"
        )
    return model


def _check_size(name: str, size: Any) -> int:
    try:
        number = operator.index(size)
    except TypeError:
        raise TypeError(f"{name} is {size!r}: give an integer") from None
    if number < (1 if name == "page_tokens" else 0):
        raise quire.InvalidArgument(f"{name} is {number}: give a positive number")
    return number


def _check_patterns(patterns: Any) -> tuple[str, ...]:
    if not isinstance(patterns, str):
        patterns = tuple(patterns)
        if all(isinstance(pattern, str) for pattern in patterns):
            return patterns
    raise TypeError(f"allow_changes is {patterns!r}: give a list of strings")


def _check_version(version: str) -> None:
    """What generate() does with a cache is not written down anywhere, and has changed between versions."""
    first, end = _TESTED
    if not first <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < end:
        warnings.warn(
            f"transformers {version} is not one that prefix_cache() was tested with: compare answers with and without "
            f"the cache, or install 'transformers>={first[0]}.{first[1]},<{end[0]}.{end[1]}'",
            stacklevel=3,
        )


class PrefixCache(ServedCache, Cache):
    """`past_key_values` of a model, see prefix_cache(). One call of generate() at a time.

    Outside of generate(), start() looks for a prompt's prefix, and finish() remembers what was computed:

        with torch.no_grad():
            reused = cache.start(input_ids, attention_mask)
            model(input_ids[:, reused:], attention_mask=attention_mask, past_key_values=cache)
            cache.finish()
    """

    def __init__(self, model: Any, store: PrefixStore) -> None:
        super().__init__(layers=[])
        self._store = store
        self.last = LastCall()
        self._lock = threading.RLock()  # held by the call under way
        self._is_started = False
        self._is_in_forward = False
        self._clear()
        self._model = weakref.ref(model)
        self._model_name = type(model).__name__
        attach(model, self)
        self._finalizer = weakref.finalize(self, _let_go, self._model, id(self), store)
        _open_caches.add(self)

    # Life.

    def close(self) -> None:
        """Writes what is not on disk yet, closes the files, and leaves the model as it was."""
        with self._alone():
            self._clear()
            self._is_started = False
            self._finalizer()

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise quire.Unsupported("a prefix cache cannot be copied or pickled: give the same one to every call")

    @property
    def quire(self) -> quire.Cache:
        """The cache below: its stats(), its tree."""
        return self._store.cache

    def __repr__(self) -> str:
        return f"PrefixCache({self._store.cache!r}, last={self.last!r})"

    # A call of generate().

    def start(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> int:
        """Looks for the prefixes of these rows. Gives the number of columns that need no computing."""
        return self._start(input_ids, attention_mask, None)

    @torch.no_grad()
    def _start(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, owner: Any) -> int:
        """owner: the PeftModel whose generate() runs."""
        with self._alone():
            self._check_open()
            self._clear()
            self.last = LastCall()
            self._owner = owner
            tokens = check_tokens(input_ids)
            self._paddings = paddings_of(tokens, attention_mask)
            self._refuse_autocast()
            try:
                self._adapters = self._look_at_model()
                self._virtual = virtual_tokens_of(owner, self._store.shapes, self._store.device)
                self._store.use_adapters(self._adapters, self._virtual.name if self._virtual else "")
            except CannotShare as reason:
                self._unknown = str(reason)
            if any(self._paddings) and not self._store.takes_positions:
                self._unknown = f"{self._model_name} takes no position_ids: K of a padded row depends on its padding"
            self._is_started = True
            columns = tokens.shape[1]
            self.last.prompt_tokens = sum(columns - padding for padding in self._paddings)
            if self._virtual is not None and any(self._paddings):
                self._unknown = "PEFT's virtual tokens stand before the padding of padded rows"
            if self._unknown:
                return 0
            if self._virtual is not None:
                return self._start_behind(self._virtual, tokens)
            found, reached = self._find(tokens)
            if reached == 0 or all(prefix is None for prefix in found):
                return 0
            self._begin(found, reached)
            self._tokens = tokens[:, :reached].to(self._store.device)
            self._whole_columns = columns
            self.last.reused_tokens = sum(max(0, reached - padding) for padding in self._paddings)
            return reached

    def _start_behind(self, virtual: VirtualTokens, tokens: torch.Tensor) -> int:
        """The same where PEFT puts virtual tokens before the prompt. It does so for a cache that is empty: what was found
        comes into the layers with the first forward pass."""
        tokens = virtual.before(tokens)
        found, reached = self._find(tokens)
        if all(prefix is None for prefix in found) or (virtual.states is not None and reached <= virtual.count):
            found, reached = [], 0
        self._held_back = (found, reached)
        self._whole = tokens.to(self._store.device)
        self.last.reused_tokens = tokens.shape[0] * max(0, reached - virtual.count)
        return 0

    def _begin_behind(self, virtual: VirtualTokens, arguments: dict[str, Any]) -> None:
        """The first forward pass behind virtual tokens is given the whole prompt. What was found is taken out of it."""
        (found, reached), whole = self._held_back, self._whole
        self._held_back = self._whole = None
        given = arguments.get("input_ids" if virtual.states is not None else "inputs_embeds")
        columns = whole.shape[1] - (virtual.count if virtual.states is not None else 0)
        if given is None or given.shape[1] != columns or given.shape[0] % whole.shape[0]:
            raise quire.InvalidArgument("the first forward pass behind PEFT's virtual tokens was not given the whole prompt")
        if not found and virtual.states is not None:
            reached = virtual.count
            for layer, (keys, values) in zip(self.layers, virtual.states):
                rows = (whole.shape[0], -1, -1, -1)
                layer.begin(keys.to(self._store.dtype).expand(*rows), values.to(self._store.dtype).expand(*rows), reached)
        elif found:
            self._begin(found, reached)
        self._tokens = whole[:, :reached] if reached else None
        repeats = given.shape[0] // whole.shape[0]
        self._expand_to(given.shape[0])
        whole = whole.repeat_interleave(repeats, dim=0)
        if virtual.states is not None:
            skipped = reached - virtual.count
            if not torch.equal(given, whole[:, virtual.count :]):
                raise quire.InvalidArgument("the first forward pass was given other tokens than generate()")
            arguments["input_ids"] = given[:, skipped:]
            if arguments.get("position_ids") is not None:
                arguments["position_ids"] = arguments["position_ids"][..., skipped:]
            return
        model = self._model()
        assert model is not None and virtual.embeddings is not None
        embedded = model.get_input_embeddings()(whole[:, virtual.count :])
        expected = torch.cat([virtual.embeddings.to(embedded.dtype).expand(given.shape[0], -1, -1), embedded], dim=1)
        if not torch.equal(given, expected):
            raise quire.InvalidArgument("the first forward pass was given other embeddings than those of its tokens")
        arguments["inputs_embeds"] = given[:, reached:]
        self._embedded_tokens = whole[:, reached:]

    def _look_at_model(self) -> str:
        """Raises when the model is not as it was when the cache was made. Names its active adapters."""
        model = self._model()
        if model is None:
            raise quire.InvalidArgument(f"the {self._model_name} that this prefix cache was made for is gone")
        return self._store.state.check(model)

    def _find(self, tokens: torch.Tensor) -> tuple[list[FoundPrefix | None], int]:
        """Each row's prefix, and the column where all of them end."""
        store, paddings = self._store, self._paddings
        limit = tokens.shape[1] - 1  # the last one is always computed: somebody wants to know what follows it
        copies: dict[Any, FoundPrefix] = {}
        while True:
            found = [
                store.find(tokens[row, padding:], limit - padding, copies) if padding < limit else None
                for row, padding in enumerate(paddings)
            ]
            ends = [
                min(padding, limit) + (prefix.tokens if prefix else 0) for prefix, padding in zip(found, paddings)
            ]
            reached = min(ends)
            if all(end == reached or padding >= reached for end, padding in zip(ends, paddings)):
                return found, reached
            if not store.has_windows:
                for prefix, padding in zip(found, paddings):
                    if prefix is not None:
                        prefix.cut(max(0, reached - padding))
                return found, reached
            limit = reached  # a window cut off behind lacks its beginning: look for shorter prefixes

    def _begin(self, found: list[FoundPrefix | None], columns: int) -> None:
        """Layers of `columns` columns: each row's padding, then its prefix."""
        for index, (layer, shape) in enumerate(zip(self.layers, self._store.shapes)):
            first = max(0, columns - shape.window + 1) if shape.window else 0
            keys = [prefix.keys[index] if prefix else None for prefix in found]
            values = [prefix.values[index] if prefix else None for prefix in found]
            layer.begin(self._stack(keys, found, first, columns), self._stack(values, found, first, columns), columns)

    def _stack(
        self, parts: list[torch.Tensor | None], found: list[FoundPrefix | None], first: int, columns: int
    ) -> torch.Tensor:
        """[row][head][column][dim] of the columns from `first` on."""
        some = next(part for part in parts if part is not None)
        if not any(self._paddings) and all(part is not None and part.data_ptr() == some.data_ptr() for part in parts):
            return some[None, :, first - columns :].expand(len(parts), -1, -1, -1)  # one row, or rows with one prefix
        # As [row][column][head][dim], which is how prefixes lie.
        whole = some.new_zeros((len(parts), columns - first, some.shape[0], some.shape[2])).transpose(1, 2)
        for row, (part, prefix, padding) in enumerate(zip(parts, found, self._paddings)):
            begin = max(first, padding)
            if part is None or prefix is None or begin >= columns:
                continue
            # What a prefix has of a window begins where that of its last token does.
            held = prefix.tokens - part.shape[1]
            whole[row, :, begin - first :] = part[:, begin - padding - held : columns - padding - held]
        return whole

    @torch.no_grad()
    def finish(self) -> int:
        """Remembers what was computed since start(). Gives the number of tokens that others could not find before."""
        with self._alone():
            self._check_open()
            if not self._is_started:
                raise quire.InvalidArgument("nothing was started: call start() before finish()")
            try:
                self._remember()
            finally:
                self._clear()
                self._is_started = False
            self._store.write(self.last)
            return self.last.published_tokens

    def _remember(self) -> None:
        if self._is_wrong is not None and bool(self._is_wrong):
            self._unknown = self._unknown or "attention_mask, position_ids or cache_position are not those of texts behind their padding"
        if not self._unknown:
            try:
                virtual = virtual_tokens_of(self._owner, self._store.shapes, self._store.device)
                if self._look_at_model() != self._adapters or (virtual and virtual.name) != (
                    self._virtual and self._virtual.name
                ):
                    self._unknown = "other adapters were chosen while the call ran"
                elif self._store.settings != settings_of_torch():
                    self._unknown = _OTHER_SETTINGS
            except (quire.Error, CannotShare) as error:
                self._unknown = str(error)
        self.last.error = self._unknown
        if self._tokens is None or self._unknown:
            return
        tokens = self._tokens.to("cpu")
        if any(layer.get_seq_length() != tokens.shape[1] for layer in self.layers):
            self.last.error = "some layers computed fewer tokens than others"
            return
        seen = set()
        for row, padding in enumerate(self._paddings):
            own = tokens[row, padding:].contiguous()
            name = own.numpy().tobytes()
            if name in seen:
                continue
            seen.add(name)
            self.last.published_tokens += self._store.publish(own, Row(self.layers, row, padding))
        self._store.poll()

    def _clear(self) -> None:
        self.layers = [WindowLayer(shape.window) if shape.window else Layer() for shape in self._store.shapes]
        self._tokens: torch.Tensor | None = None  # [row][column], as far as columns are held
        self._incoming: torch.Tensor | None = None
        self._whole_columns: int | None = None  # of the prompt, until the first forward pass behind a found prefix
        self._paddings: list[int] = []
        self._adapters = ""
        self._owner: Any = None
        self._virtual: VirtualTokens | None = None
        self._held_back: tuple[list[FoundPrefix | None], int] | None = None  # until the first pass behind virtual tokens
        self._whole: torch.Tensor | None = None  # the prompt with their placeholders, as long
        self._embedded_tokens: torch.Tensor | None = None  # those that this pass is given as embeddings
        self._unknown = ""  # why it is not known which tokens K and V are of, and where these stand
        self._is_wrong: torch.Tensor | None = None  # the same, as the device found it

    # What must hold.

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise quire.Unavailable(
                "another thread is in a call with this prefix cache: wait for it, or make a cache for each thread"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._store.cache.is_closed:
            raise quire.InvalidArgument("this prefix cache is closed: make another one with prefix_cache(model)")

    def _check_model(self, model: Any) -> None:
        self._check_open()
        if self._model() is not model:
            raise quire.InvalidArgument(
                f"this prefix cache was made for another model, a {self._model_name}: make one for this "
                f"{type(model).__name__} with prefix_cache(model)"
            )

    def _check_update(self, states: torch.Tensor, layer_index: int) -> None:
        if not self._is_started or not self._is_in_forward:
            self._check_open()
            how = (
                "had no start() before it"
                if self._is_in_forward
                else "is of another model, of a part of this one, or was called as forward()"
            )
            raise quire.InvalidArgument(
                f"this prefix cache is for a {self._model_name}, and a forward pass that was given it {how}: call "
                "generate() of that model, or start() and then the model itself; for another model, or one inside a "
                "wrapper, make a prefix_cache() of that one"
            )
        store = self._store
        if states.dtype != store.dtype or states.device != store.device:
            raise quire.InvalidArgument(
                f"layer {layer_index} has K in {states.dtype} on {states.device}, and the prefix cache was made when it was "
                f"{store.dtype} on {store.device}: make a new prefix_cache(model) after the model was changed"
            )

    # Tokens follow K and V.

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # torch.compile() compiles this, and would do so anew for each number of tokens so far: they are left to
        # _after_forward().
        self._check_update(key_states, layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _expand_to(self, rows: int) -> None:
        """Rows became beams, or answers of one prompt, since their prefixes were looked for."""
        if not self._paddings:
            self._paddings = [0] * rows
        repeats, rest = divmod(rows, len(self._paddings))
        if rest or not repeats:
            self._unknown = f"{len(self._paddings)} rows became {rows}"
        elif repeats > 1:
            self.batch_repeat_interleave(repeats)

    def run_forward(self, model: Any, forward: Any, arguments: dict[str, Any]) -> Any:
        with self._alone():
            self._check_model(model)
            if self._unknown == _BROKE_OFF:
                raise quire.InvalidArgument(
                    "an earlier forward pass broke off, and left K and V in some layers: call start() again"
                )
            self._check_adapters(model)
            if self._held_back is not None:
                self._begin_behind(self._virtual, arguments)
            others = arguments
            if self._embedded_tokens is not None:
                others = {name: value for name, value in arguments.items() if name != "inputs_embeds"}
            try:
                refuse_others(model, "a forward pass", others, OF_FORWARD)
            except quire.Unsupported as error:
                if self.last.reused_tokens:
                    raise  # what was found is of passes without this argument
                self._unknown = self._unknown or str(error)
            arguments["input_ids"] = self._before_forward(arguments.get("input_ids"), arguments)
            self._is_in_forward = True
            try:
                output = forward(**arguments)
            except BaseException:
                if any(layer.get_seq_length() != self._known_columns() for layer in self.layers):
                    self._unknown = _BROKE_OFF
                raise
            finally:
                self._is_in_forward = False
                for layer in self.layers:
                    layer.collect()
            self._after_forward()
            return output

    def _refuse_autocast(self) -> None:
        if torch.is_autocast_enabled(self._store.device.type):
            raise quire.Unsupported(
                "autocast is on: K and V would not be those of calls without it; convert the model (model.to(dtype)) "
                "and make a prefix_cache() of that"
            )

    def _check_adapters(self, model: Any) -> None:
        """Adapters may be chosen anew between start() and a forward pass by hand, and torch be told something else."""
        self._refuse_autocast()
        try:
            if self._store.settings != settings_of_torch():
                what = _OTHER_SETTINGS
            elif self._store.state.name_adapters() == self._adapters:
                return
            else:
                what = "other adapters are active than at start()"
        except CannotShare as reason:
            what = str(reason)
        if self.last.reused_tokens:
            raise quire.InvalidArgument(f"{what}: call start() again")
        self._unknown = self._unknown or what

    def _before_forward(self, tokens: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Sees what a forward pass is given. Tokens that are there already are taken out."""
        self._incoming = None
        if self._embedded_tokens is not None:
            embedded, self._embedded_tokens = self._embedded_tokens, None
            self._incoming = embedded
            self._check_places(self.get_seq_length(), embedded.shape[1], kwargs)
            return None
        if tokens is None or tokens.ndim != 2:
            if self._virtual is None or not self._unknown:  # else it is known already why they are embeddings
                self._unknown = "a forward pass was given no input_ids of [row][column]"
            return tokens
        self._expand_to(tokens.shape[0])
        held = self.get_seq_length()
        positions = kwargs.get("position_ids")
        whole_columns, self._whole_columns = self._whole_columns, None
        if (
            held
            and whole_columns is not None
            and tokens.shape[1] >= whole_columns
            and torch.equal(tokens[:, :held].to(self._tokens), self._tokens)
        ):
            # Assisted decoding begins with the whole prompt, whatever the cache has of it.
            if positions is not None and positions.shape[-1] == tokens.shape[1]:
                positions = kwargs["position_ids"] = positions[..., held:]
            columns = kwargs.get("cache_position")
            if columns is not None and columns.shape[-1] == tokens.shape[1]:
                kwargs["cache_position"] = columns[..., held:]
            tokens = tokens[:, held:]
        self._incoming = tokens.detach().to(self._store.device, torch.long)
        self._check_places(held, tokens.shape[1], kwargs)
        return tokens

    def _known_columns(self) -> int:
        return 0 if self._tokens is None else self._tokens.shape[1]

    def _after_forward(self) -> None:
        incoming, self._incoming = self._incoming, None
        if (
            incoming is None
            or self.get_seq_length() != self._known_columns() + incoming.shape[1]
            or self.layers[0].keys.shape[0] != incoming.shape[0]
        ):
            self._unknown = self._unknown or "a forward pass computed other tokens than it was given"
            return
        self._tokens = incoming if self._tokens is None else torch.cat([self._tokens, incoming], dim=1)

    def _check_places(self, held: int, count: int, arguments: dict[str, Any]) -> None:
        """K depends on where a token stands and on what it sees: if that is not as it seems, nothing is remembered."""
        mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
        columns_given = arguments.get("cache_position")  # of code that is not of transformers
        if (mask is None or positions is None) and any(self._paddings):
            self._unknown = self._unknown or "a forward pass of padded rows was given no attention_mask, or no position_ids"
            return
        if mask is not None and (not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape[1] != held + count):
            self._unknown = self._unknown or "attention_mask is not [row][column] of all columns so far"
            return
        if positions is not None and (positions.ndim != 2 or positions.shape[1] != count):
            self._unknown = self._unknown or "position_ids is not [row][column] of the columns that are computed"
            return
        if columns_given is not None and (not isinstance(columns_given, torch.Tensor) or columns_given.shape != (count,)):
            self._unknown = self._unknown or "cache_position is not [column] of the columns that are computed"
            return
        device = self._incoming.device
        paddings = torch.tensor(self._paddings, device=device)[:, None]
        wrong = torch.zeros((), dtype=torch.bool, device=device)
        if mask is not None:
            columns = torch.arange(held + count, device=device)[None]
            wrong |= ((mask.to(device) != 0) != (columns >= paddings)).any()
        if positions is not None:
            places = torch.arange(held, held + count, device=device)[None] - paddings
            wrong |= ((positions.to(device) != places) & (places >= 0)).any()
        if columns_given is not None:
            wrong |= (columns_given.to(device) != torch.arange(held, held + count, device=device)).any()
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
        tokens_to_remove = int(tokens_to_remove)  # prompt lookup has it in a tensor
        length = self.get_seq_length()
        # A positive number is what older versions of transformers mean by a length to keep.
        removed = -tokens_to_remove if tokens_to_remove <= 0 else max(0, length - tokens_to_remove)
        removed = min(removed, length)
        if not all(layer.can_shorten(removed) for layer in self.layers):
            raise quire.InvalidArgument(
                f"{removed} tokens cannot be taken off: they reach into a prefix that was found, and of the windows of "
                "earlier tokens nothing was copied; call start() with the shorter prompt"
            )
        for layer in self.layers:
            layer.shorten(removed)
        if self._tokens is not None:
            self._tokens = self._tokens[:, : max(0, self._tokens.shape[1] - removed)]

    def reset(self) -> None:
        self._clear()

    # generate() itself.

    @contextlib.contextmanager
    def _in_place_of_prefixes(self, model: Any) -> Iterator[None]:
        """PEFT's prefix tuning begins with a cache of its own, which has the prefix: this one has it as well."""
        if self._virtual is None or self._virtual.states is None:
            yield
            return
        prepare = model.prepare_inputs_for_generation

        @functools.wraps(prepare)
        def prepare_for_this(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("past_key_values") is not self or self.get_seq_length():
                return prepare(*args, **kwargs)
            inputs = prepare(*args, **{**kwargs, "past_key_values": DynamicCache()})
            return inputs if self._unknown else {**inputs, "past_key_values": self}

        model.prepare_inputs_for_generation = prepare_for_this
        try:
            yield
        finally:
            model.prepare_inputs_for_generation = prepare

    def run_generate(self, model: Any, generate: Any, arguments: dict[str, Any]) -> Any:
        with self._alone():
            self._check_model(model)
            owner = getattr(model.__dict__.get("prepare_inputs_for_generation"), "__self__", None)
            kind_of_virtual_tokens(owner)  # which takes the place of the model's own for the time of its generate()
            input_ids, arguments = prompt_of(model, arguments)
            try:
                self._start(input_ids, arguments["attention_mask"], owner)
                with self._in_place_of_prefixes(model):
                    output = generate(input_ids, **arguments)
            except BaseException:
                self._clear()
                self._is_started = False
                raise
            try:
                self.finish()
            except Exception as error:  # The answer is there, and right.
                self.last.error = f"{type(error).__name__}: {error}"
                warnings.warn(f"generate() was done, but its K and V were not remembered: {self.last.error}", stacklevel=3)
            return output


# Whoever ends without close(): their pages are written before the process is gone. This comes after the import of quire,
# so that it runs before quire's own handler, which closes all caches as they are.
_open_caches: weakref.WeakSet[PrefixCache] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for cache in list(_open_caches):
        if cache._store._process != os.getpid():
            continue
        try:
            cache.close()
        except Exception as error:  # noqa: BLE001 - the others are to be closed as well
            warnings.warn(f"a prefix cache was not closed at the end of the process: {type(error).__name__}: {error}")


def _let_go(reference: weakref.ref[Any], cache_id: int, store: PrefixStore) -> None:
    """Of a cache that is closed or dropped."""
    try:
        model = reference()
        if model is not None:
            detach(model, cache_id)
    finally:
        store.close()
