# SPDX-License-Identifier: Apache-2.0
"""How generate() and the forward passes of a model reach the cache that they are given.

While caches are open, the model's class is a subclass of the one it had. Nothing is put into the model itself, so that
copies and files of it are those of a plain model, and two caches do not get in each other's way. All models of a class
have the same subclass, which stays, because what torch.compile() has compiled is for one class.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import threading
import weakref
from typing import Any

_lock = threading.RLock()  # entered again when a cache is collected while another is attached
_served_classes: dict[type, type] = {}  # of plain ones
_open_caches: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()  # of each model, by id()


class ServedCache:
    """A cache that takes part in the calls it is given to."""

    def run_generate(self, model: Any, generate: Any, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError

    def run_forward(self, model: Any, forward: Any, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Served:
    """What the class of a model with open caches has before its own."""

    def __call__(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # transformers reads the hints of models
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = next((arg for arg in args if isinstance(arg, ServedCache)), None)
        if isinstance(cache, ServedCache):
            arguments = _by_name(type(self).forward, args, kwargs) if args else kwargs
            return cache.run_forward(self, super().__call__, arguments)
        return super().__call__(*args, **kwargs)

    def __reduce_ex__(self, protocol):  # type: ignore[no-untyped-def]
        # Copies and files are of the plain class: nobody can import this one.
        plain = _served_class(type(self))._quire_plain_class
        make, args, *rest = super().__reduce_ex__(protocol)
        if make is copyreg.__newobj__:  # which pickle refuses for any class but the object's
            return (copyreg._reconstructor, (plain, object, None), *rest)
        return (make, tuple(plain if arg is type(self) else arg for arg in args), *rest)


def _served_class(kind: type) -> type:
    """The one that attach() has given: others may have put theirs before it."""
    return next(base for base in kind.__mro__ if "_quire_plain_class" in base.__dict__)


def _make_served(plain: Any) -> type:
    @functools.wraps(plain.generate)
    def generate(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        cache = kwargs.get("past_key_values")
        if isinstance(cache, ServedCache):
            arguments = _by_name(plain.generate, args, kwargs)
            return cache.run_generate(self, functools.partial(plain.generate, self), arguments)
        return plain.generate(self, *args, **kwargs)

    names = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "generate": generate,
        "_quire_plain_class": plain,
    }
    return type(plain)(plain.__name__, (_Served, plain), names)


def attach(model: Any, cache: ServedCache) -> None:
    """From now on the model's calls that are given this cache run by its methods."""
    with _lock:
        _open_caches.setdefault(model, set()).add(id(cache))  # first, so that detach() leaves the class alone
        if not isinstance(model, _Served):
            plain = type(model)
            if plain not in _served_classes:
                _served_classes[plain] = _make_served(plain)
            model.__class__ = _served_classes[plain]


def detach(model: Any, cache_id: int) -> None:
    """Undoes attach(); the model has its own class again when this was the last cache."""
    with _lock:
        caches = _open_caches.get(model, set())
        caches.discard(cache_id)
        if not caches and isinstance(model, _Served):
            served = _served_class(type(model))
            if type(model) is served:
                model.__class__ = served._quire_plain_class


def _by_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a method, also those given by their place, by name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]
    if len(args) > len(names) - 1:  # without self
        name = getattr(function, "__name__", "the method")
        raise TypeError(f"{name}() takes {len(names) - 1} arguments by their place and was given {len(args)}")
    return {**dict(zip(names[1:], args)), **kwargs}
