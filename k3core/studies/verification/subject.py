"""What the checks check: the real modules, or a private copy of them in which a fault may live.

A private copy runs the same code from the same files, but a name replaced in it (such as
``kda.kda_step``) is replaced in that copy alone: other sessions of one server, and the rest of this
program, go on with the real one.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

_ROOT = "k3core"
_SHARED = frozenset({"k3core.errors"})  # one class of errors for all copies
_ENTRY_MODULES = ("kda", "decode", "replayssm", "parallel", "model", "engine")


class Subject:
    """The mechanisms that a check runs, one attribute per module.

    Args:
        load: gives the module of a full name.
    """

    def __init__(self, load: Callable[[str], Any]) -> None:
        self.kda: Any
        self.decode: Any
        self.replayssm: Any
        self.parallel: Any
        self.model: Any
        self.engine: Any
        for name in _ENTRY_MODULES:
            setattr(self, name, load(f"{_ROOT}.{name}"))


def real_subject() -> Subject:
    """The modules that everybody uses."""
    return Subject(importlib.import_module)


def private_subject() -> Subject:
    """A copy whose modules share no name with the real ones (errors excepted)."""
    return Subject(_PrivateModules().load)


class _PrivateModules:
    """Modules of this package, executed anew and importing only each other."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def load(self, name: str) -> ModuleType:
        if name in _SHARED:
            return importlib.import_module(name)
        if name not in self._modules:
            # The real one first: class decorators look their module up in sys.modules.
            spec = importlib.import_module(name).__spec__
            if spec is None or spec.loader is None:
                raise ImportError(f"module {name!r} has no source to run again", name=name)
            module = importlib.util.module_from_spec(spec)
            vars(module)["__builtins__"] = self._builtins
            self._modules[name] = module
            spec.loader.exec_module(module)
            parent, _, child = name.rpartition(".")
            if parent in self._modules:
                setattr(self._modules[parent], child, module)
        return self._modules[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if name.partition(".")[0] != _ROOT:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if name == _ROOT:
            return SimpleNamespace(
                **{part: self.load(f"{_ROOT}.{part}") for part in fromlist or ()}
            )
        module = self.load(name)
        for part in fromlist or ():
            if not hasattr(module, part):
                setattr(module, part, self.load(f"{name}.{part}"))
        return module
