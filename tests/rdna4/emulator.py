"""Runs kernels of a gfx12 code object on the RDNA4 instruction emulator of a tinygrad checkout.

The environment variable TINYGRAD names the checkout: its test tree holds the emulator, its wheel
does not. Results are evidence of correctness only: nothing here says anything about time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE_BYTES = 4096
MAP_NORESERVE = 0x4000  # Linux; the mmap module does not name it
LDS_SPACE_BYTES = (1 << 32) + PAGE_BYTES  # whatever 32-bit address an idle lane holds lies inside


def why_not() -> str | None:
    """The reason why the emulator cannot run here, or None."""
    root = os.environ.get("TINYGRAD")
    if not root:
        return "TINYGRAD is not set to a tinygrad checkout"
    if not (Path(root) / "test/mockgpu/amd/emu.py").is_file():
        return f"TINYGRAD={root} has no test/mockgpu/amd/emu.py"
    return None


class _LdsSpace:
    """One anonymous mapping that serves as LDS of every launch; untouched pages cost nothing."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._mapping = mmap.mmap(-1, LDS_SPACE_BYTES, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))


def _load_emulator() -> ModuleType:
    """The emulator, adapted: our kernels keep denormals, and the emulator lets inactive lanes read
    LDS at whatever address they hold."""
    root = os.environ["TINYGRAD"]
    if shutil.which("clang") is None:
        # The emulator compiles what it emulates, by this name if there is no plain one.
        versions = (f"clang-{version}" for version in range(22, 18, -1))
        os.environ.setdefault("CC", next(filter(shutil.which, versions), "clang"))
    if root not in sys.path:
        sys.path.insert(0, root)
    emu: Any = importlib.import_module("test.mockgpu.amd.emu")
    if not hasattr(emu, "nf12_lds"):
        emu.nf12_lds = _LdsSpace()
        emu._MXCSRContext = contextlib.nullcontext
        make_buffer = emu.Buffer

        def buffer(device: str, size: int, dtype: Any, **options: Any) -> Any:
            # run_asm makes two buffers of words without a scalar file behind them: all of memory
            # (it says where), and LDS.
            caller = sys._getframe(1)
            if (
                caller.f_code.co_name == "run_asm"
                and not options
                and "lds_buf" not in caller.f_locals
            ):
                where = emu.BufferSpec(external_ptr=emu.nf12_lds.address)
                return make_buffer(device, LDS_SPACE_BYTES // 4, dtype, options=where)
            return make_buffer(device, size, dtype, **options)

        emu.Buffer = buffer
    return emu  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Descriptor:
    """The fields of a kernel descriptor (64 bytes) that a launch needs."""

    lds_bytes: int
    scratch_bytes: int
    entry: int  # offset in the loaded image
    rsrc2: int
    properties: int


KERNARG_POINTER = 1 << 3  # the one user value that our kernels ask for


class CodeObject:
    """A loaded code object."""

    def __init__(self, path: Path) -> None:
        image = path.read_bytes()
        if image[:4] != b"\x7fELF":
            raise ValueError(f"{path}: not an ELF file")
        header = struct.unpack_from("<HHIQQQIHHHHHH", image, 16)
        program_offset, section_offset = header[4], header[5]
        segments = [
            struct.unpack_from("<IIQQQQQQ", image, program_offset + 56 * i)
            for i in range(header[9])
        ]
        loads = [segment for segment in segments if segment[0] == 1]
        self.size = max(s[3] + s[6] for s in loads) + PAGE_BYTES
        self._memory = mmap.mmap(-1, -(-self.size // PAGE_BYTES) * PAGE_BYTES)
        for _, _, offset, address, _, file_bytes, _, _ in loads:
            self._memory[address : address + file_bytes] = image[offset : offset + file_bytes]
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.symbols = self._read_symbols(image, section_offset, header[11])

    @staticmethod
    def _read_symbols(image: bytes, section_offset: int, sections: int) -> dict[str, int]:
        table = [
            struct.unpack_from("<IIQQQQIIQQ", image, section_offset + 64 * i)
            for i in range(sections)
        ]
        symbols = {}
        for section in table:
            if section[1] not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
                continue
            names = table[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
                end = image.index(b"\0", names + name)
                symbols[image[names + name : end].decode()] = value
        return symbols

    def kernels(self) -> list[str]:
        return sorted(name[:-3] for name in self.symbols if name.endswith(".kd"))

    def descriptor(self, kernel: str) -> Descriptor:
        at = self.symbols[kernel + ".kd"]
        lds, scratch = struct.unpack_from("<II", self._memory, at)
        (entry,) = struct.unpack_from("<q", self._memory, at + 16)
        _, rsrc2, properties = struct.unpack_from("<IIH", self._memory, at + 48)
        return Descriptor(lds, scratch, at + entry, rsrc2, properties)

    def launch(self, kernel: str, grid: Sequence[int], threads: int, arguments: Any) -> None:
        """Runs all blocks of a grid; `arguments` is the ctypes structure that the kernel takes."""
        descriptor = self.descriptor(kernel)
        if descriptor.properties & 0x7F != KERNARG_POINTER:
            raise ValueError(f"{kernel} wants more than its arguments: {descriptor.properties:#x}")
        address = ctypes.addressof(arguments)
        granules = (descriptor.lds_bytes + 511) // 512
        rsrc2 = descriptor.rsrc2 & ~(0x1FF << 15) | granules << 15
        _load_emulator().run_asm(
            self.base + descriptor.entry,
            self.size - descriptor.entry,
            *grid,
            threads,
            1,
            1,
            address,
            rsrc2,
            descriptor.scratch_bytes,
            "rdna4",
            [address & 0xFFFFFFFF, address >> 32],
        )
