# SPDX-License-Identifier: Apache-2.0
"""What the code of forward passes says: which attributes they write, which global names they read."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

# Their functions are not followed: what they write is none of a module's own attributes, or is looked at otherwise.
_NOT_FOLLOWED = (
    "torch", "transformers.modeling_utils", "transformers.generation", "transformers.utils", "transformers.integrations",
    "transformers.configuration_utils", "transformers.cache_utils", "peft", "accelerate", "quire",
)
_FUNCTIONS_MAX = 2000


def _is_followed(function: types.FunctionType) -> bool:
    # By the file of its code: what a decorator puts in a function's place says that it is of the function's module.
    module = function.__globals__.get("__name__")
    return module is not None and not any(module == name or module.startswith(f"{name}.") for name in _NOT_FOLLOWED)


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """A function that an attribute of a class or a global name stands for."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.FunctionType):
        yield value


def _enclosed_in(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """What it closes over: of a decorated function, the function itself."""
    for cell in function.__closure__ or ():
        try:
            yield from _functions_in(cell.cell_contents)
        except ValueError:  # not filled yet
            pass


def _codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_of(constant)


@functools.cache
def functions_of_forward(kind: type) -> tuple[types.FunctionType, ...]:
    """forward() of a class of modules, and what it calls by name: methods of the class and functions of its files. Behind
    any number of decorators, also those of libraries that are not followed."""
    seen: set[int] = set()
    found: list[types.FunctionType] = []
    waiting = list(_functions_in(kind.forward))  # type: ignore[attr-defined]
    while waiting and len(found) < _FUNCTIONS_MAX:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        waiting.extend(_enclosed_in(function))
        if not _is_followed(function):
            continue
        found.append(function)
        for code in _codes_of(function.__code__):
            for name in code.co_names:
                method = next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)
                waiting.extend(_functions_in(method))
                waiting.extend(_functions_in(function.__globals__.get(name)))
    return tuple(found)


def names_in_forward(kind: type) -> set[str]:
    """All names that forward() of this class reads."""
    return {name for function in functions_of_forward(kind) for code in _codes_of(function.__code__) for name in code.co_names}


# Methods that change the list, dictionary, set or tensor that they are called of.
_CHANGING = {
    "append", "extend", "insert", "pop", "clear", "update", "setdefault", "popitem", "add", "discard", "remove", "copy_",
    "fill_", "resize_", "set_",
}


def _written_in(code: types.CodeType) -> Iterator[str]:
    """Names of attributes that are assigned to, and of those whose content is: x.name = …, x.name[…] = …, x.name.append(…)."""
    steps = list(dis.get_instructions(code))
    for index, step in enumerate(steps):
        if step.opname == "STORE_ATTR":
            yield step.argval
        elif step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in _CHANGING and steps[index - 1].opname == "LOAD_ATTR":
            yield steps[index - 1].argval
        elif step.opname == "STORE_SUBSCR":
            # Back over what computes the key, to what was put on the stack before it.
            missing, place = 1, index
            while missing > 0 and place > 0:
                place -= 1
                argument = steps[place].arg if steps[place].opcode >= dis.HAVE_ARGUMENT else None
                missing -= dis.stack_effect(steps[place].opcode, argument, jump=False)
            if place > 0 and steps[place - 1].opname == "LOAD_ATTR":
                yield steps[place - 1].argval
    if "register_buffer" in code.co_names or "setattr" in code.co_names:
        yield from (constant for constant in code.co_consts if isinstance(constant, str))


@functools.cache
def names_that_forward_writes(kind: type) -> frozenset[str]:
    """Names of attributes that forward() of this class writes, of itself or of anything else."""
    return frozenset(
        name for function in functions_of_forward(kind) for code in _codes_of(function.__code__) for name in _written_in(code)
    )


def _text_of_constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _text_of(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_text_of_constant, value))})"
    if isinstance(value, frozenset):  # in no order of its own
        return f"{{{', '.join(sorted(map(_text_of_constant, value)))}}}"
    return repr(value)


def _text_of(code: types.CodeType) -> str:
    constants = [_text_of_constant(value) for value in code.co_consts]
    return hashlib.sha256(f"{code.co_code!r} {code.co_names} {constants}".encode()).hexdigest()


def text_of_code(value: Any) -> str:
    """Names a function, a class or a piece of code; the same in each process."""
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    code = value if isinstance(value, types.CodeType) else getattr(value, "__code__", None)
    return f"{name} {_text_of(code)}" if isinstance(code, types.CodeType) else name


def plain_class(module: Any) -> type:
    """Its class; of a model with open caches, the one it had before."""
    kind: type = getattr(type(module), "_quire_plain_class", type(module))
    return kind


def is_watched(kind: type) -> bool:
    """Somebody may put another function into the class. Those of torch and Python are left alone."""
    return kind.__module__.split(".")[0] not in ("builtins", "torch", "abc", "typing")


def globals_of_forward(kinds: Iterable[type]) -> list[tuple[str, dict[str, Any], list[str]]]:
    """By file: the names that forward passes of these classes read there."""
    read: dict[int, tuple[str, dict[str, Any], dict[str, None]]] = {}
    for kind in kinds:
        for function in functions_of_forward(kind) if hasattr(kind, "forward") else ():
            held = function.__globals__
            _, _, names = read.setdefault(id(held), (str(held.get("__name__")), held, {}))
            for code in _codes_of(function.__code__):
                names.update((name, None) for name in code.co_names if name in held)
    return [(name, held, list(names)) for name, held, names in read.values()]
