"""A digest of a record by content: its numbers, and the code of its functions and classes.

Code of installed packages counts by its name; all other code by its instructions, constants, defaults and
what it reads from its module. So a function of a notebook is distinguished from its changed version.
"""

import dataclasses
import dis
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np

from simlab.core.own_code import is_own_code


@dataclasses.dataclass
class _Seen:
    """The values that a digest has visited, and the files that it leaves out.

    - `values`: by id, the position of a visited value, and the value, so that no later one gets its id.
    - `files`: files whose content another digest holds; None counts all code and all values.
    """

    values: dict[int, tuple[int, Any]]
    files: frozenset[Path] | None

    def copy(self) -> "_Seen":
        return _Seen(dict(self.values), self.files)


GENERATED = ("__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__", "__init__")
"""Methods that `dataclass` generates."""


def fingerprint(record: object) -> str:
    """Return 12 hexadecimal digits that equal records, and functions of equal code, share.

    Raises:
        ValueError: For a part that is neither data nor Python code, with its type.
    """
    return _digest(record, None)


def fingerprint_values(record: object, files: Iterable[Path]) -> str:
    """Return 12 hexadecimal digits of the values of a record, which each process that imports it computes.

    The values are its numbers, strings, arrays and containers, those that its functions read from their
    modules, and code outside `files`, whose source the caller has. Parts that may differ between processes
    count by their type only: paths, the environment, objects of libraries with a state of their own (other
    than dataclasses and arrays), and objects that their address identifies. A part that raises an error
    leaves out all values: then the digest is empty.
    """
    try:
        return _digest(record, frozenset(files))
    except Exception:  # whatever the attributes of a user's object may raise
        return ""


def _digest(record: object, files: frozenset[Path] | None) -> str:
    return hashlib.sha256(repr(_content(record, _Seen({}, files))).encode()).hexdigest()[:12]


def _content(value: Any, seen: _Seen) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value).__name__, repr(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value, seen)
    if id(value) in seen.values:
        return "seen", seen.values[id(value)][0]
    seen.values[id(value)] = len(seen.values), value
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | np.ufunc):
        return _code(value, seen)
    return _container(value, seen)


def _container(value: Any, seen: _Seen) -> Any:
    name = type(value).__qualname__
    if seen.files is not None and _may_differ(value):
        # A data frame has a state of its own, but its array is data.
        return "type", name, _array(np.asarray(value), seen) if hasattr(type(value), "__array__") else None
    if isinstance(value, Mapping):
        return name, [(_content(key, seen), _content(part, seen)) for key, part in value.items()]
    if isinstance(value, tuple | list):
        return name, [_content(part, seen) for part in value]
    if isinstance(value, set | frozenset):
        # Their order is another in each process, so no part may depend on those before it.
        return name, sorted(repr(_content(part, seen.copy())) for part in value)
    if isinstance(value, functools.partial):
        return name, [_content(part, seen) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        owner = getattr(value, "__self__", None)
        return name, _content(value.__func__, seen), _content(owner, seen)
    if isinstance(value, property):
        return name, _content(value.fget, seen)
    inner = getattr(value, "__wrapped__", None) or getattr(value, "func", None)
    if callable(inner):  # a jitted or cached function
        return name, _content(inner, seen)
    if dataclasses.is_dataclass(value):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return _code(type(value), seen), [(key, _content(part, seen)) for key, part in fields]
    if hasattr(value, "__dict__"):
        return _code(type(value), seen), _content(vars(value), seen)
    if is_own_code(type(value).__module__) or " at 0x" in repr(value):
        raise ValueError(f"a value of type {name} has no content that distinguishes its versions")
    return name, repr(value)


def _may_differ(value: Any) -> bool:
    """Return whether a value may differ between processes that import the same code and data."""
    cls = type(value)
    if is_own_code(cls.__module__) or dataclasses.is_dataclass(value):
        return False
    if isinstance(value, dict | tuple | list | set | frozenset | functools.partial | types.SimpleNamespace):
        return False
    if isinstance(value, types.MappingProxyType | types.MethodType | staticmethod | classmethod | property):
        return False
    if callable(getattr(value, "__wrapped__", None) or getattr(value, "func", None)):
        return False
    has_state = isinstance(value, Mapping | PurePath) or hasattr(value, "__dict__")
    return has_state or " at 0x" in repr(value)


def _array(value: Any, seen: _Seen) -> Any:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.hasobject:  # its bytes are addresses
        return "array", str(array.dtype), array.shape, _content(array.tolist(), seen)
    return "array", str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def _code(value: Any, seen: _Seen) -> Any:
    name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)}"
    if not is_own_code(getattr(value, "__module__", None)):
        return "name", name
    # The module of user code is left out: `__main__` has another name in another process.
    if isinstance(value, type):
        return value.__qualname__, [_content(base, seen) for base in value.__bases__], _members(value, seen)
    code, cells = value.__code__, value.__closure__ or ()
    parts = [value.__defaults__, value.__kwdefaults__, [cell.cell_contents for cell in cells]]
    # An installed package may have wrapped user code.
    is_wrapper = not is_own_code(value.__globals__.get("__name__", value.__module__))
    # Names of the module itself (`__file__`) are no content; pytest adds some that are not identifiers.
    names = [key for key in _names(code) if key.isidentifier() and not key.startswith("__")]
    names = [key for key in names if key in value.__globals__ and not is_wrapper]
    reads = [(key, _content_read(value.__globals__[key], code, seen)) for key in names]
    is_known = seen.files is not None and Path(code.co_filename) in seen.files
    instructions = code.co_firstlineno if is_known else _instructions(code)
    return value.__qualname__, instructions, [_content(part, seen) for part in parts], reads


def _content_read(value: Any, code: types.CodeType, seen: _Seen) -> Any:
    """Return the content of a global of `code`; of an own module, that of the attributes `code` may read."""
    if not isinstance(value, types.ModuleType) or not is_own_code(value.__name__):
        return _content(value, seen)
    held = {key: vars(value)[key] for key in _attributes(code) if key in vars(value)}
    parts = []
    for key, part in held.items():
        is_inner = isinstance(part, types.ModuleType) and part.__name__.startswith(f"{value.__name__}.")
        parts.append((key, _content_read(part, code, seen) if is_inner else _content(part, seen)))
    return "module", value.__name__, parts


def _members(cls: type, seen: _Seen) -> Any:
    is_dataclass = "__dataclass_fields__" in vars(cls)
    # `__dataclass_params__` says whether the constructor is generated, too.
    written = () if not is_dataclass or cls.__dataclass_params__.init else ("__init__",)  # type: ignore[attr-defined]
    members = []
    for name, member in sorted(vars(cls).items()):
        is_special = name.startswith("__") and not isinstance(member, types.FunctionType)
        if (
            not is_special
            and name != "_abc_impl"
            and (not is_dataclass or name in written or name not in GENERATED)
        ):
            members.append((name, _content(member, seen)))
    for field in dataclasses.fields(cls) if is_dataclass else ():
        default = None if field.default is dataclasses.MISSING else field.default
        factory = field.default_factory if callable(field.default_factory) else None
        members.append(
            (field.name, [_content(part, seen) for part in (default, factory, dict(field.metadata))])
        )
    return members


def _instructions(code: types.CodeType) -> Any:
    constants = [
        _instructions(part)
        if isinstance(part, types.CodeType)
        else sorted(map(repr, part))
        if isinstance(part, frozenset)
        else repr(part)
        for part in code.co_consts
    ]
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def _names(code: types.CodeType) -> list[str]:
    """Return the names that `code` reads from its module."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    # `co_names` has attributes, too: a global of a notebook may have the name of one.
    read = [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return sorted({*read, *inner})


def _attributes(code: types.CodeType) -> list[str]:
    """Return the names of attributes and globals in `code`."""
    inner = [
        name for part in code.co_consts if isinstance(part, types.CodeType) for name in _attributes(part)
    ]
    return sorted({*code.co_names, *inner})
