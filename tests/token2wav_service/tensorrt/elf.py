"""Reads an x86-64 shared library without loading it: what each function loads and calls, in order.

Knows ELF and two instructions; knows nothing of Python bindings.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_FUNCTION = 2
"""Symbol type, low half of `st_info`."""
_INSTRUCTION = re.compile(
    rb"(?P<load>[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(?=.{4})|(?P<call>\xe8)(?=.{4})", re.DOTALL
)
"""lea reg, [rip + disp32], which takes a constant's address, and call rel32."""
_LEA_SIZE, _CALL_SIZE = 7, 5
_REX_W, _RSI = 0x48, 0x35


@dataclass(frozen=True)
class Load:
    """A string constant whose address is taken."""

    text: str
    is_second_argument: bool
    """It goes to rsi, where the calling convention passes a function's second argument."""


@dataclass(frozen=True)
class Call:
    """A call of a function of the same library."""

    address: int
    names: tuple[str, ...]
    """Mangled; several where equal code was folded."""


@dataclass(frozen=True)
class _Section:
    address: int
    data: bytes


class SharedLibrary:
    """The functions of an unstripped library, by address."""

    def __init__(self, image: bytes) -> None:
        """Read sections and symbols.

        Raises:
            ValueError: no ELF file, or its symbol table was stripped.
        """
        if image[:4] != b"\x7fELF":
            raise ValueError("expected an ELF shared library")
        sections = _read_sections(image)
        if ".symtab" not in sections:
            raise ValueError("the library is stripped: its functions have no names")
        self._rodata = sections[".rodata"]
        functions = sorted(_read_functions(sections[".symtab"].data, sections[".strtab"].data))
        self._starts = [start for start, _, _ in functions]
        self._functions = functions
        self._events = list(self._scan(sections[".text"]))
        self._event_addresses = [address for address, _ in self._events]

    def functions(self) -> Iterator[tuple[int, str]]:
        """Return address and mangled name of every function."""
        return ((start, name) for start, _, name in self._functions)

    def body(self, address: int) -> Iterator[Load | Call]:
        """Return what the function at an address loads and calls, in the order of its code."""
        _, size, _ = self._functions[bisect_left(self._starts, address)]
        first = bisect_left(self._event_addresses, address)
        last = bisect_left(self._event_addresses, address + size)
        return (event for _, event in self._events[first:last])

    def _scan(self, text: _Section) -> Iterator[tuple[int, Load | Call]]:
        # Data inside code may look like these instructions; a target that is no string or function start is dropped.
        for match in _INSTRUCTION.finditer(text.data):
            at = match.start()
            event = self._call(text, at) if match["call"] else self._load(text, at)
            if event is not None:
                yield text.address + at, event

    def _call(self, text: _Section, at: int) -> Call | None:
        target = text.address + at + _CALL_SIZE + struct.unpack_from("<i", text.data, at + 1)[0]
        first, last = bisect_left(self._starts, target), bisect_right(self._starts, target)
        names = tuple(name for _, _, name in self._functions[first:last])
        return Call(target, names) if names else None

    def _load(self, text: _Section, at: int) -> Load | None:
        target = text.address + at + _LEA_SIZE + struct.unpack_from("<i", text.data, at + 3)[0] - self._rodata.address
        if not 0 <= target < len(self._rodata.data):
            return None
        raw = self._rodata.data[target : self._rodata.data.index(b"\0", target)]
        try:
            string = raw.decode()
        except UnicodeDecodeError:
            return None
        is_second = text.data[at] == _REX_W and text.data[at + 2] == _RSI
        return Load(string, is_second) if string else None


def _read_sections(image: bytes) -> dict[str, _Section]:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    headers = [_SECTION.unpack_from(image, table + index * entry_size) for index in range(count)]
    names = headers[names_index]
    sections = {}
    for header in headers:
        name, _, _, address, offset, size = header[:6]
        sections[_text_at(image, names[4] + name)] = _Section(address, image[offset : offset + size])
    return sections


def _read_functions(symbols: bytes, names: bytes) -> Iterator[tuple[int, int, str]]:
    for name, info, _, _, address, size in _SYMBOL.iter_unpack(symbols):
        if info & 0xF == _FUNCTION and size:
            yield address, size, _text_at(names, name)


def _text_at(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()
