# SPDX-License-Identifier: Apache-2.0
"""What modules keep in plain attributes, and what of it is not as it was.

A forward pass may read any of them: numbers, tensors, lists and dictionaries of both, objects that hold such, also those
that are put there later. Each is seen in a way that a change shows: plain values by value, tensors by identity and by
torch's count of writes, functions by identity and by what they close over, everything else by what is in it.

Some attributes a forward pass writes itself: tables of cosines that grow with the text, lengths, counters. Which ones
these are is told by the code of forward() and by passes that were watched. What they change to is judged by the caller.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import hashlib
import logging
import operator
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers

import quire
from quire.integrations._code import globals_of_forward, is_watched, names_that_forward_writes, plain_class, text_of_code

# What torch.nn.Module itself keeps in a module.
OF_TORCH = set(torch.nn.Module().__dict__) | {"_compiled_call_impl", "_forward_hooks_always_called"}
# What K and V do not depend on, or what others look at: names, what PEFT and accelerate put into a model, and what
# generate() is told.
_NO_ATTRIBUTES = OF_TORCH | {
    "name_or_path", "loss_type", "gradient_checkpointing", "warnings_issued", "generation_config", "forward", "_hf_hook",
    "_old_forward", "_is_hf_initialized", "peft_config", "_hf_peft_config_loaded", "prepare_inputs_for_generation",
    "_gradient_checkpointing_func", "_require_grads_hook", "_require_grads_hooks", "_output_capturing_hooks_installed",
}
# The same of configurations. The element type of K and V is part of the layout.
BESIDES = {
    "architectures", "dtype", "torch_dtype", "use_cache", "name_or_path", "transformers_version", "return_dict",
    "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type", "finetuning_task",
    "_name_or_path", "_commit_hash", "_output_attentions", "_output_hidden_states",
}
_PRIMITIVES = (bool, int, float, complex, str, bytes, type(None), type(...))
_BY_VALUE = (*_PRIMITIVES, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range, slice)
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
# They hold nothing that a forward pass computes with.
_HARMLESS = (
    logging.Logger, weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, types.ModuleType,
    type(threading.Lock()), type(threading.RLock()), transformers.GenerationConfig,
)


# Of objects that class attributes and global names stand for: these libraries' own do not change.
_LIBRARIES = {"builtins", "torch", "typing", "functools", "abc", "_abc", "collections", "re", "types", "enum"}


_DEFINITIONS = (type, types.FunctionType, *_BUILTIN_FUNCTIONS)


class Change:
    """Something that is not as it was."""

    def __init__(self, root: tuple[str, str], path: str, was: Any, now: Any, is_own: bool) -> None:
        self.root = root  # the module's name and that of its attribute
        self.path = path
        self.was = was  # what was seen; None: nothing
        self.now = now
        self.is_own = is_own  # forward passes of the model change it

    @property
    def is_of_tensor(self) -> bool:
        return isinstance(self.was, _SeenTensor)

    @property
    def is_growth(self) -> bool:
        """A table has grown or shrunk, and what both have is the same."""
        return isinstance(self.was, _SeenTensor) and self.was.is_longer_in(self.now)

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.path} was not there"
        if self.now is GONE:
            return f"{self.path} is gone"
        if isinstance(self.was, _SeenTensor):
            return f"{self.path} was written to, or is another tensor"
        if isinstance(self.was, _SeenValue) and type(self.now) in _BY_VALUE:
            return f"{self.path} was {self.was.value!r:.60} and is {self.now!r:.60}"
        return f"{self.path} is another {type(self.now).__name__}"


GONE = object()
Report = Callable[[Any, Any, Any], None]  # of the way to a place, what was seen there, and what is there


def _is_equal(one: Any, other: Any) -> bool:
    """Without taking 1 for True, or 0.0 for -0.0."""
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


class _SeenValue:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if now is not self.value and not _is_equal(now, self.value):
            report(place, self, now)


class _SeenIdentity:
    """A function, a class, an object that nobody can look into."""

    __slots__ = ("reference",)

    def __init__(self, value: Any) -> None:
        try:
            self.reference: Any = weakref.ref(value)
        except TypeError:
            self.reference = lambda: value

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if self.reference() is not now:
            report(place, self, now)


class _SeenTensor:
    __slots__ = ("reference", "version", "address", "kind", "kept")

    def __init__(self, tensor: torch.Tensor, keep: bool) -> None:
        self.reference = weakref.ref(tensor)
        self.version = tensor._version
        self.address = tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) else 0
        self.kind = (tensor.dtype, tensor.shape, tensor.device)
        self.kept = tensor if keep else None  # until it is known what came in its place

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if (
            self.reference() is not now
            or now._version != self.version
            or (self.address and now.data_ptr() != self.address)
            or (now.dtype, now.shape, now.device) != self.kind
        ):
            report(place, self, now)

    def is_longer_in(self, now: Any) -> bool:
        """A table that has grown or shrunk: what both have is the same."""
        was = self.kept
        if was is None or was._version != self.version or not isinstance(now, torch.Tensor):
            return False
        if was is now or now.dtype != was.dtype or now.device != was.device or now.ndim != was.ndim:
            return False
        common = tuple(slice(0, min(sizes)) for sizes in zip(was.shape, now.shape))
        return all(min(sizes) > 0 for sizes in zip(was.shape, now.shape)) and torch.equal(was[common], now[common])


def is_array(value: Any) -> bool:
    """NumPy's arrays and scalars, and torch's generators."""
    if isinstance(value, torch.Generator):
        return True
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.dtype != "O"


def digest_of_array(array: Any) -> str:
    state = array.get_state().numpy() if isinstance(array, torch.Generator) else array
    return hashlib.sha256(f"{state.dtype} {state.shape}".encode() + state.tobytes()).hexdigest()


class _SeenArray:
    __slots__ = ("digest",)

    def __init__(self, array: Any) -> None:
        self.digest = digest_of_array(array)

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if not is_array(now) or digest_of_array(now) != self.digest:
            report(place, self, now)


class _SeenParts:
    """A list, a dictionary, an object: whatever has parts with names."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.parts: dict[Any, Any] = {}
        self.values: list[Any] | None = None  # where all of them are plain

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if type(now) is not self.kind:
            report(place, self, now)
            return
        name = (id(self), id(now))
        if name in visited:
            return
        visited.add(name)
        parts = _parts_of(now)
        if self.values is not None and len(parts) == len(self.values):
            try:
                if all(map(operator.is_, map(parts.__getitem__, self.parts), self.values)):
                    return
            except KeyError:
                pass
        for key, seen in self.parts.items():
            part = parts.get(key, GONE)
            if part is GONE:
                report([*place, (now, key)], seen, part)
            else:
                seen.compare(part, [*place, (now, key)], visited, report)
        if len(parts) != len(self.parts):
            for key in parts.keys() - self.parts.keys():
                report([*place, (now, key)], None, parts[key])


def _parts_of(value: Any) -> dict[Any, Any]:
    """What is in it, by name or by place."""
    if isinstance(value, dict):  # a class of its own may look things up in another way, and make what is not there
        return value if type(value) is dict else dict(dict.items(value))
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return {"__func__": value.__func__, "__self__": value.__self__}
    if isinstance(value, types.FunctionType):
        cells = {name: _content_of(cell) for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ())}
        return {"__code__": value.__code__, "__defaults__": value.__defaults__, "__kwdefaults__": value.__kwdefaults__} | cells
    parts = dict(getattr(value, "__dict__", None) or {})
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                parts[name] = getattr(value, name)
    if isinstance(value, transformers.PreTrainedConfig):
        return {
            name: part for name, part in parts.items()
            if name not in BESIDES and not name.endswith(("token_id", "token_ids"))
        }
    return parts


def _content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _has_parts(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple, functools.partial, types.MethodType, types.FunctionType)):
        return True
    return hasattr(value, "__dict__") or any("__slots__" in base.__dict__ for base in type(value).__mro__[:-1])


class _SeenSet:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = type(value)(value)

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        if type(now) is not type(self.value) or now != self.value:
            report(place, self, now)


class _Unseen:
    """What K and V do not depend on."""

    def compare(self, now: Any, place: Any, visited: set[Any], report: Report) -> None:
        pass


class _SeenModule:
    """The attributes of one module."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = weakref.ref(module)
        self.written = names_that_forward_writes(type(module))
        self.count = 0
        self.seen: dict[str, Any] = {}
        # Those that are plain are compared all at once: most attributes of most modules are.
        self.plain: Callable[[Any], Any] = operator.itemgetter("training", "training")
        self.plain_values: list[Any] = []
        self.others: dict[str, Any] = {}


class _SeenNames:
    """Attributes of a class, or global names that forward passes read. Functions and classes are seen by identity."""

    def __init__(self, name: str, held: Any, names: Iterable[str] | None) -> None:
        self.name = name
        self.held = held
        self.names = names  # None: all, also those that come later
        self.plain: Callable[[Any], Any] = lambda held: ()
        self.plain_values: dict[str, Any] = {}
        self.others: dict[str, Any] = {}
        self.count = 0

    def is_plain_as_it_was(self) -> bool:
        try:
            return all(map(operator.is_, self.plain(self.held), self.plain_values.values()))
        except KeyError:
            return False


def written_buffers(module: Any) -> set[str]:
    """Buffers that a forward pass of the module writes itself."""
    return names_that_forward_writes(type(module)) & module.__dict__["_buffers"].keys()


class Attributes:
    """All plain attributes of some modules, and the buffers that their forward passes write.

    allowed: patterns of paths that K and V are known not to depend on.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]], allowed: Iterable[str]) -> None:
        self._allowed = tuple(allowed)
        self._learned: set[tuple[str, str]] = set()  # what changed in passes that were watched
        modules = list(modules)
        self._modules = [_SeenModule(name, module) for name, module in modules]
        classes = {kind: None for _, module in modules for kind in plain_class(module).__mro__ if is_watched(kind)}
        self._names = [_SeenNames(f"{kind.__module__}.{kind.__qualname__}", kind.__dict__, None) for kind in classes]
        self._names += [_SeenNames(name, held, names) for name, held, names in globals_of_forward(classes)]
        self.look()

    def look(self) -> None:
        """From now on everything is compared with what it is now."""
        self._modules_by_id = {id(module): seen.name for seen in self._modules if (module := seen.module()) is not None}
        self._met: dict[int, tuple[str, Any, Any]] = {}  # shared objects, held so that none takes another's place
        self._texts: list[str] = []
        self._tensors: list[tuple[str, Any]] = []
        for seen in self._modules:
            self._look_at(seen)
        for names in self._names:
            self._look_at_names(names)
        self._met = {}
        self.text = hashlib.sha256("\n".join(self._texts).encode()).hexdigest()  # the same in each process, without tensors
        self._texts = []

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Those that are to stay as they are."""
        return [(path, tensor) for path, reference in self._tensors if (tensor := reference()) is not None]

    def learn(self, changes: Iterable[Change]) -> None:
        """Forward passes have made these changes. Of such attributes neither text nor tensors() say anything."""
        self._learned.update(change.root for change in changes)

    def is_allowed(self, path: str) -> bool:
        return is_allowed(path, self._allowed)

    # Seeing.

    def _look_at(self, seen: _SeenModule) -> None:
        module = seen.module()
        if module is None:
            return
        held = module.__dict__
        seen.seen = {}
        for name, value in held.items():
            path = join(seen.name, name)
            if name in _NO_ATTRIBUTES or self.is_allowed(path):
                continue
            self._is_learned = (seen.name, name) in self._learned
            self._is_own = self._is_learned or name in seen.written
            seen.seen[name] = self._see(value, path)
        plain = [name for name, what in seen.seen.items() if isinstance(what, _SeenValue)]
        names = [*plain, "training", "training"]  # two or more, so that a tuple comes of it
        seen.plain = operator.itemgetter(*names)
        seen.plain_values = [held[name] for name in names]
        seen.others = {name: what for name, what in seen.seen.items() if name not in plain}
        seen.count = len(held)
        for name in sorted(seen.written):
            buffer = held["_buffers"].get(name)
            if buffer is not None:
                self._is_learned, self._is_own = (seen.name, name) in self._learned, True
                seen.seen[name] = seen.others[name] = self._see(buffer, join(seen.name, name))

    def _look_at_names(self, seen: _SeenNames) -> None:
        seen.plain_values, seen.others = {}, {}
        for name in seen.held if seen.names is None else seen.names:
            value = seen.held[name]
            path = join(seen.name, name)
            self._is_learned = self._is_own = (seen.name, name) in self._learned
            if self.is_allowed(path):
                seen.others[name] = _Unseen()
            elif not self._is_learned and (type(value) in _BY_VALUE or isinstance(value, _DEFINITIONS)):
                seen.plain_values[name] = value
                if type(value) in _PRIMITIVES and not name.startswith("__"):
                    self._write(path, repr(value))
            else:
                seen.others[name] = _Unseen() if name.startswith("__") else self._see(value, path, is_lenient=True)
        names = list(seen.plain_values)
        if len(names) == 1:
            seen.plain = lambda held, name=names[0]: (held[name],)  # type: ignore[misc]
        elif names:
            seen.plain = operator.itemgetter(*names)
        seen.count = len(seen.held)

    def _write(self, path: str, text: str) -> None:
        if not self._is_learned:
            self._texts.append(f"{path} = {text}")

    def _see(self, value: Any, path: str, is_lenient: bool = False) -> Any:
        if isinstance(value, enum.Enum) or type(value) in _BY_VALUE:
            self._write(path, repr(value))
            return _SeenValue(value)
        if isinstance(value, torch.Tensor):
            if value.is_inference():
                raise _cannot_see(path, "was made under torch.inference_mode(), so that torch does not count its changes")
            self._write(path, f"{value.dtype} {tuple(value.shape)}")
            if not self._is_learned:
                self._tensors.append((path, weakref.ref(value)))
            return _SeenTensor(value, keep=self._is_own)
        if is_array(value):
            self._write(path, digest_of_array(value))
            return _SeenArray(value)
        if isinstance(value, _HARMLESS):
            return _Unseen()
        if id(value) in self._modules_by_id:  # which is looked at itself
            self._write(path, self._modules_by_id[id(value)])
            return _SeenIdentity(value)
        if isinstance(value, (type, types.CodeType, *_BUILTIN_FUNCTIONS)):
            self._write(path, text_of_code(value))
            return _SeenIdentity(value)
        if isinstance(value, (set, frozenset)):
            self._write(path, repr(sorted(value, key=repr)))
            return _SeenSet(value)
        if id(value) in self._met:
            first, met, _ = self._met[id(value)]
            self._write(path, f"that of {first}")
            return met
        if is_lenient and not isinstance(value, (dict, list, tuple)) and type(value).__module__.split(".")[0] in _LIBRARIES:
            return _SeenIdentity(value)
        if not _has_parts(value):
            if is_lenient:
                return _SeenIdentity(value)
            raise _cannot_see(path, f"is a {type(value).__name__}, into which nobody can look")
        self._write(path, f"{type(value).__module__}.{type(value).__qualname__}")
        seen = _SeenParts(type(value))
        self._met[id(value)] = (path, seen, value)
        parts = _parts_of(value)
        for key in sorted(parts, key=repr):
            inner = _join_part(path, value, key)
            seen.parts[key] = _Unseen() if self.is_allowed(inner) else self._see(parts[key], inner, is_lenient)
        if all(isinstance(part, _SeenValue) for part in seen.parts.values()):
            seen.values = [part.value for part in seen.parts.values()]
        return seen

    # Comparing.

    def changes(self) -> list[Change]:
        """All that is not as it was at the last look."""
        found: list[Change] = []
        visited: set[Any] = set()
        for seen in self._modules:
            module = seen.module()
            if module is None:
                continue
            held = module.__dict__
            is_plain_as_it_was = len(held) == seen.count
            if is_plain_as_it_was:
                try:
                    is_plain_as_it_was = all(map(operator.is_, seen.plain(held), seen.plain_values))
                except KeyError:
                    is_plain_as_it_was = False
            for name, what in (seen.others if is_plain_as_it_was else seen.seen).items():
                now = held[name] if name in held else held["_buffers"].get(name, GONE)
                self._compare(seen, name, what, now, visited, found)
            if not is_plain_as_it_was:
                for name in held.keys() - seen.seen.keys() - _NO_ATTRIBUTES:
                    self._compare(seen, name, None, held[name], visited, found)
        for names in self._names:
            self._compare_names(names, visited, found)
        return found

    def _compare_names(self, seen: _SeenNames, visited: set[Any], found: list[Change]) -> None:
        held = seen.held
        if not seen.is_plain_as_it_was():
            for name, value in seen.plain_values.items():
                if held.get(name, GONE) is not value:
                    self._compare(seen, name, _SeenValue(value), held.get(name, GONE), visited, found)
        if seen.names is None and len(held) != seen.count:
            for name in held.keys() - seen.plain_values.keys() - seen.others.keys():
                self._compare(seen, name, None, held[name], visited, found)
        for name, what in seen.others.items():
            self._compare(seen, name, what, held.get(name, GONE), visited, found)

    def _compare(
        self, seen: Any, name: str, what: Any, now: Any, visited: set[Any], found: list[Change]
    ) -> None:
        def report(place: list[Any], was: Any, now: Any) -> None:
            path = join(seen.name, name)
            for holder, key in place:
                path = _join_part(path, holder, key)
            if not self.is_allowed(path):
                root = (seen.name, name)
                is_own = root in self._learned or name in getattr(seen, "written", ())
                found.append(Change(root, path, was, now, is_own))

        if what is None or now is GONE:
            report([], what, now)
        else:
            what.compare(now, [], visited, report)


def is_allowed(path: str, patterns: Iterable[str]) -> bool:
    """Somebody has said so of it, or of what it is in."""
    return any(fnmatch.fnmatchcase(path, pattern + rest) for pattern in patterns for rest in ("", ".*", "[[]*"))


def join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _join_part(path: str, holder: Any, key: Any) -> str:
    is_item = isinstance(holder, (dict, list, tuple))
    return f"{path}[{key!r:.60}]" if is_item else f"{path}.{key}"


def _cannot_see(path: str, why: str) -> quire.Error:
    return quire.Unsupported(
        f"{path} {why}: when K and V do not depend on it, make the cache with prefix_cache(model, allow_changes=[{path!r}])"
    )
