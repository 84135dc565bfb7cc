"""Integrations with other libraries. Where the library is missing or unused, they cost nothing.

`register_all` runs with `import nf12`. A library that is already imported is told about nf12 at
once; one that is imported later is told then. No library is imported for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

# transformers imports lazily; this module holds its tables of quantization methods.
TRANSFORMERS_TABLES = "transformers.quantizers.auto"


def register_all() -> None:
    """Makes nf12 known to every supported library, in either import order. Idempotent."""
    after_import(TRANSFORMERS_TABLES, _register_transformers)


def _register_transformers() -> None:
    from nf12.integrations.transformers.registration import register

    register()


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` now if the module `name` is imported, else as soon as it has been."""
    if name in sys.modules:
        action()
    elif not any(isinstance(f, _AfterImport) and f.name == name for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module the ordinary way, loads it the ordinary way, then calls `action` once."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action
        self.loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self.loader is not None
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self.loader is not None and module.__spec__ is not None
        # The module keeps its own loader: inspect and importlib.resources ask it for more than
        # this class offers.
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self)
        self.action()
