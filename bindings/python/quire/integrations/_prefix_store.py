# SPDX-License-Identifier: Apache-2.0
"""Prefixes of one transformers model in quire's pages: finding and remembering."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import warnings
from typing import Any, Protocol

import torch
import transformers

import quire
from quire.integrations._identity import ModelState, refuse_unknown_parts, settings_of_torch
from quire.integrations._model import ELEMENTS, LayerShape, layer_shapes, takes_positions
from quire.integrations._writer import DiskWriter, Report, describe

# How long pages on their way to the host may hold up a call before it goes on without them.
_PATIENCE_S = 5.0
# The file of a directory that says whose pages are beside it.
_ABOUT = "model.json"


@dataclasses.dataclass
class _Group:
    """Layers that a group of the layout holds, and its pool: [page][layer][token][head][dim]."""

    layers: list[int]
    window: int
    keys: torch.Tensor
    values: torch.Tensor


@dataclasses.dataclass
class FoundPrefix:
    """K and V of a row's first tokens, by layer: [head][token][dim]. Of a window, those that the next token sees, and no
    less than a page."""

    tokens: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def cut(self, tokens: int) -> None:
        """Without its last tokens. Windows must have enough in front."""
        removed = self.tokens - tokens
        if removed > 0:
            self.keys = [keys[:, :-removed] for keys in self.keys]
            self.values = [values[:, :-removed] for values in self.values]
            self.tokens = tokens

    def lengthen_windows(self, earlier: FoundPrefix, windows: list[int]) -> None:
        """Puts in front of each window what that of a shorter prefix has."""
        for index, window in enumerate(windows):
            count = (self.tokens - self.keys[index].shape[1]) - (earlier.tokens - earlier.keys[index].shape[1])
            if window == 0 or count <= 0:
                continue
            self.keys[index] = torch.cat([earlier.keys[index][:, :count], self.keys[index]], dim=1)
            self.values[index] = torch.cat([earlier.values[index][:, :count], self.values[index]], dim=1)


class PrefixSource(Protocol):
    """K and V of one row, by its own tokens."""

    @property
    def first_token(self) -> int:
        """The first that all layers have."""

    def rows(self, layer_index: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]: ...


class PrefixStore:
    """Pages of one model's prefixes, in all tiers."""

    def __init__(
        self,
        model: Any,
        *,
        device_bytes: int,
        host_bytes: int,
        directory: str | None,
        disk_bytes: int,
        page_tokens: int,
        policy: str,
        identity: str | None,
        salt: str,
        allow_hooks: bool,
        allow_changes: tuple[str, ...],
        check_all_weights: bool,
    ) -> None:
        refuse_unknown_parts(model, allow_hooks=allow_hooks, allow_changes=allow_changes)
        self.shapes, self.dtype, self.device = layer_shapes(model)
        self.takes_positions = takes_positions(model)
        self.state = ModelState(
            model, identity, allow_hooks=allow_hooks, allow_changes=allow_changes, check_all_weights=check_all_weights
        )
        self.page_tokens = page_tokens
        self._model_name = type(model).__name__
        kinds = sorted(set(self.shapes), key=lambda shape: (shape.window != 0, self.shapes.index(shape)))
        members = [[i for i, shape in enumerate(self.shapes) if shape == kind] for kind in kinds]
        layout = quire.ModelLayout.create(
            self._model_name, [self._group(kind, layers) for kind, layers in zip(kinds, members)]
        )
        about = {
            "model": self._model_name,
            "layout": layout.describe(),
            "page_tokens": page_tokens,
            "configuration": self.state.configuration,
            "identity": self.state.identity,
        }
        config = quire.CacheConfig(layout=layout, policy=policy)
        config.page.page_tokens = page_tokens
        # As many pages of windows as of the rest, so that a prompt can be gone on with wherever another one parts from
        # it.
        page_bytes = page_tokens * self.dtype.itemsize * sum(
            shape.heads * (shape.key_dim + shape.value_dim) for shape in self.shapes
        )
        config.device.page_count = _pages_in(device_bytes, page_bytes, "device_bytes") - 1  # one is the null page
        config.device.group_page_counts = [config.device.page_count] * len(kinds)
        config.plan.page_tables = quire.PageTables.Csr
        config.partial_reuse_min_tokens = page_tokens  # pages are copied out anyway: whole ones are enough
        # Where this build of quire cannot reach the model's device, its pages stay in the processor's memory.
        self.pool_device = torch.device("cpu")
        if self.device.type == "cuda" and quire.has_cuda:
            self.pool_device = self.device
            config.device.memory = quire.DeviceMemory.Accelerator
            config.device.accelerator = quire.open_cuda_device(self.device.index or 0)
        if directory is not None:
            _check_directory(directory, about)
            config.disk.directories = [os.path.join(directory, "pages")]
            config.disk.capacity_bytes = disk_bytes
            host_bytes = host_bytes or device_bytes
        if host_bytes:
            config.host.page_count = _pages_in(host_bytes, page_bytes, "host_bytes")
            config.host.group_page_counts = [config.host.page_count] * len(kinds)
            config.host.write_policy = quire.WritePolicy.WriteThrough if directory else quire.WritePolicy.WriteBack
        self.has_disk = directory is not None
        try:
            self.cache = quire.Cache.open(config)
        except quire.Unavailable as error:
            if directory is None:
                raise
            raise quire.Unavailable(
                f"{directory} belongs to a cache that is open ({error}): close the earlier cache first, or give another "
                "directory"
            ) from None
        if directory is not None:
            _write_about(directory, about)
        self.tokens_max = self.cache.context_tokens_max // page_tokens * page_tokens
        self.step_tokens = min(2048, config.step_tokens_max)
        self._salt = salt
        self._versions = f"{torch.__version__} {transformers.__version__} {_name_of(self.device)}"
        self._process = os.getpid()
        self.use_adapters("")
        with torch.inference_mode(False):  # else calls outside of it could not write to them
            self.groups = [
                _Group(
                    layers,
                    kind.window,
                    torch.from_dlpack(self.cache.component_memory(index, "k")),
                    torch.from_dlpack(self.cache.component_memory(index, "v")),
                )
                for index, (kind, layers) in enumerate(zip(kinds, members))
            ]
        self.has_windows = any(group.window for group in self.groups)
        self._writer = DiskWriter(self.cache) if self.has_disk else None

    def use_adapters(self, adapters: str, virtual: str = "") -> None:
        """From now on, pages of the model with these adapters, and behind these virtual tokens, are found and remembered;
        "": without."""
        state = self.state
        self.settings = settings_of_torch()
        # Asked for each time: of very many key spaces, the cache forgets those that were not used for long.
        self.space = self.cache.key_space(
            quire.KeySpace(
                model=self._model_name,
                revision=f"{state.identity} {state.configuration} {state.details} {self.settings} {self._versions}",
                adapter=f"{adapters} {virtual}" if virtual else adapters,
                element=str(self.dtype),
                salt=self._salt,
            )
        )

    def _group(self, shape: LayerShape, layers: list[int]) -> quire.CacheGroup:
        element = ELEMENTS[self.dtype]
        group = quire.CacheGroup(
            name=f"window-{layers[0]}" if shape.window else f"full-{layers[0]}",
            layers=layers,
            components=[
                quire.Component(name="k", element=element, heads=shape.heads, dim=shape.key_dim),
                quire.Component(name="v", element=element, heads=shape.heads, dim=shape.value_dim),
            ],
        )
        if shape.window:
            group.kind = quire.GroupKind.Window
            group.window_tokens = shape.window
        return group

    def close(self) -> None:
        if self.cache.is_closed or os.getpid() != self._process:  # a forked child has neither the thread nor the files
            return
        try:
            if self._writer is not None:
                self._writer.stop()
                if not self.cache.wait_until_flushed(60.0):
                    warnings.warn("a prefix cache was closed before all its pages were on disk: the disk is too slow")
        finally:
            for group in self.groups:
                del group.keys, group.values
            self.groups.clear()
            self.cache.close()

    def settle(self) -> None:
        """What the device still does with pages is done."""
        if self.pool_device.type == "cuda":
            torch.cuda.current_stream(self.pool_device).synchronize()

    def poll(self) -> None:
        self.cache.apply(self.cache.poll())

    def write(self, report: Report) -> None:
        """Has what is new written to disk behind the caller's back. What goes wrong is said in `report`, now or later."""
        if self._writer is None:
            return
        if self.cache.stats().disk_has_failed:
            report.error = report.error or describe(self.cache.disk_status().last_error)
            return
        self._writer.wake(report)

    # Finding.

    def find(self, tokens: torch.Tensor, tokens_max: int, copies: dict[Any, FoundPrefix]) -> FoundPrefix | None:
        """The longest known prefix of a row, no longer than tokens_max, copied out of its pages.

        copies: of the rows before it, which may have the same prefix.
        """
        page = self.page_tokens
        found = self._find_pages(tokens, min(-(-tokens_max // page) * page, tokens.numel()), copies)
        if found is None or found.tokens <= tokens_max:
            return found
        # It ends inside its last page. What a window needs there is what it needs at both ends of that page.
        if self.has_windows and tokens_max >= page:
            earlier = self._find_pages(tokens, tokens_max, copies)
            if earlier is None or earlier.tokens != tokens_max // page * page:
                return earlier
            found.lengthen_windows(earlier, [shape.window for shape in self.shapes])
        found.cut(tokens_max)
        return found

    def _find_pages(self, tokens: torch.Tensor, tokens_max: int, copies: dict[Any, FoundPrefix]) -> FoundPrefix | None:
        """The same, in whole pages."""
        tokens_max = min(tokens_max, self.tokens_max) // self.page_tokens * self.page_tokens
        if tokens_max <= 0:
            return None
        options = quire.SequenceOptions(match_tokens_max=tokens_max, publish=quire.Publish.None_)
        with self.cache.begin(self.space, tokens[:tokens_max], options) as sequence:
            try:
                admission = self.cache.admit(sequence)
            except quire.Unavailable:
                return None
            if not admission.is_ready:
                self.cache.wait_until_ready(sequence)
            matched = self.cache.view(sequence).computed_tokens
            if matched == 0:
                return None
            name = tokens[:matched].numpy().tobytes()
            if name not in copies:
                step = self._plan(sequence, 1)
                if step is None:
                    return None
                try:
                    copies[name] = self._copy_out(step.plan, matched)
                finally:
                    self.settle()
                    self.cache.abort_step(step)
            # Callers change the lists, not the tensors.
            return FoundPrefix(matched, list(copies[name].keys), list(copies[name].values))

    def _plan(self, sequence: quire.Sequence, token_count: int) -> quire.Step | None:
        """A step, once there are pages for it; None when there are none for long."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            outcome = self.cache.plan_step([quire.StepEntry(sequence=sequence, token_count=token_count)])
            if outcome.step is not None:
                return outcome.step
            if outcome.shortage.pages_leaving == 0 or time.monotonic() > deadline:
                return None
            self.poll()
            time.sleep(0.0005)

    def _copy_out(self, plan: quire.AttentionPlan, matched: int) -> FoundPrefix:
        keys: list[Any] = [None] * len(self.shapes)
        values: list[Any] = [None] * len(self.shapes)
        for group, lists in zip(self.groups, plan.groups):
            level = lists.levels[0]
            begin, end = int(level.page_indptr[0]), int(level.page_indptr[1])
            pages = torch.from_numpy(lists.page_indices[begin:end].astype("int64")).to(self.pool_device)
            # At least a page, so that what is cut off behind and what an earlier page end has in front leave no gap.
            first = max(0, matched - max(group.window - 1, self.page_tokens)) if group.window else 0
            # Which token of the listed pages `first` is: see GroupPlan. Nothing is in front of a window without a sink.
            skipped = first - int(level.first_keys[0]) + int(level.window_offsets[0])
            for pool, target in ((group.keys, keys), (group.values, values)):
                for number, layer in enumerate(group.layers):
                    # From [page][token][head][dim] to [head][token][dim] in one copy: heads stay where they are, and only
                    # the strides say that they come first.
                    rows = pool[:, number].index_select(0, pages).flatten(0, 1)[skipped : skipped + matched - first]
                    target[layer] = rows.transpose(0, 1).to(self.device)
        return FoundPrefix(matched, keys, values)

    # Remembering.

    def publish(self, tokens: torch.Tensor, source: PrefixSource) -> int:
        """Remembers the whole pages of a row; says how many tokens others could not find before."""
        count = min(tokens.numel(), self.tokens_max) // self.page_tokens * self.page_tokens
        if count == 0:
            return 0
        tokens = tokens[:count]
        lookup = self.cache.lookup(self.space, tokens)
        findable = lookup.matched_tokens + lookup.host_tokens
        # What the device has is enough to go on from; where a window has lost its beginning, so is what is below.
        for tier in (quire.Tier.Device, quire.Tier.Disk):
            with self.cache.begin(self.space, tokens, quire.SequenceOptions(tier_max=tier)) as sequence:
                try:
                    if not self.cache.admit(sequence).is_ready:
                        self.cache.wait_until_ready(sequence)
                except quire.Unavailable:
                    return 0
                position = self.cache.view(sequence).computed_tokens
                findable = max(findable, position)
                if position < source.first_token and position < count:
                    continue
                while position < count:
                    step = self._plan(sequence, min(self.step_tokens, count - position))
                    if step is None:
                        break
                    try:
                        entry = step.plan.entries[0]
                        self._copy_in(step.plan, source, entry.position, entry.token_count)
                        self.settle()
                    except BaseException:  # A step that is never finished would be in the way of all others.
                        self.settle()
                        self.cache.abort_step(step)
                        raise
                    self.cache.finish_step(step, [None])
                    position = entry.position + entry.token_count
                    self.poll()
                return max(0, position - findable)
        return 0

    def _copy_in(self, plan: quire.AttentionPlan, source: PrefixSource, position: int, count: int) -> None:
        for group, lists in zip(self.groups, plan.groups):
            slots = torch.from_numpy(lists.append_slots[:count].copy())
            stored = (slots >= 0).nonzero().flatten()
            if stored.numel() == 0:
                continue
            first, last = int(stored[0]), int(stored[-1]) + 1
            if last - first != stored.numel():
                raise AssertionError("append slots with gaps")
            slots = slots[first:last].to(self.pool_device)
            pages, places = slots // self.page_tokens, slots % self.page_tokens
            for number, layer in enumerate(group.layers):
                keys, values = source.rows(layer, position + first, position + last)
                group.keys[pages, number, places] = keys.transpose(0, 1).to(self.pool_device)
                group.values[pages, number, places] = values.transpose(0, 1).to(self.pool_device)


def _name_of(device: torch.device) -> str:
    """Of what computes K and V: another one rounds differently."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type} {torch.backends.cpu.get_cpu_capability()}"


def _pages_in(size: int, page_bytes: int, what: str) -> int:
    if size < 4 * page_bytes:
        raise quire.InvalidArgument(
            f"{what} is {size}: a page of this model has {page_bytes} bytes, give {4 * page_bytes} or more"
        )
    return min(size // page_bytes, (1 << 31) - 1)


def _check_directory(directory: str, about: dict[str, Any]) -> None:
    """A directory belongs to the model that it was made for."""
    if not directory:
        raise quire.InvalidArgument("directory is empty: name one, or give None")
    path = os.path.join(directory, _ABOUT)
    try:
        with open(path, encoding="utf-8") as file:
            theirs = json.load(file)
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)
        return
    except ValueError as error:
        raise quire.Corrupt(f"{path} cannot be read ({error}): delete it with the pages beside it") from None
    if not isinstance(theirs, dict) or "model" not in theirs:
        raise quire.Corrupt(f"{path} says nothing of a model: delete it with the pages beside it")
    differences = {
        "model": "another model",
        "layout": "another shape",
        "page_tokens": "other pages",
        "configuration": "another configuration",
        "identity": "other weights",
    }
    for key, what in differences.items():
        if theirs.get(key) != about[key]:
            raise quire.InvalidArgument(
                f"{directory} has pages of {theirs.get('model')} with {what}: its {key} is {theirs.get(key)!r}, and "
                f"this is {about[key]!r}; give another directory, or delete that one"
            )


def _write_about(directory: str, about: dict[str, Any]) -> None:
    """Once the pages beside it are this cache's: one that cannot be opened claims no directory."""
    path = os.path.join(directory, _ABOUT)
    if os.path.exists(path):
        return
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
    os.replace(temporary, path)
