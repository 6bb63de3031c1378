"""Tells a streamed FLAC file its length, which libsndfile needs to read it.

Who writes a FLAC file as a stream can't go back, and leaves its length open (0). Every frame's header says where the
frame begins and how long it is, so that the last one gives the length of all. Source: RFC 9639, sections 8.2 and 9.1.
"""

from __future__ import annotations

_MARK = b"fLaC"
_LONGEST_BLOCK = slice(10, 12)
_LENGTH = slice(21, 26)
"""Its lower 36 bits; what stands before them is not the length's."""
_LENGTH_BITS = 36
_FIRST_FRAME_AT = 42
_SYNCS = (b"\xff\xf8", b"\xff\xf9")
"""Of frames that are numbered by frames, and by samples."""
_LONGEST_HEADER_BYTES = 16
_SIZE_BYTES = {6: 1, 7: 2}
"""Bytes behind a frame's number that hold its samples, by the code of its size."""
_RATE_BYTES = {12: 1, 13: 2, 14: 2}
_CRC_POLYNOMIAL = 0x107


def with_length(data: bytes) -> bytes:
    """Return a FLAC file whose length is open with its length filled in, and any other file as it is."""
    known = int.from_bytes(data[_LENGTH], "big")
    if data[: len(_MARK)] != _MARK or len(data) < _FIRST_FRAME_AT or known % (1 << _LENGTH_BITS):
        return data
    # NOTE: without any frame it is 1, so that the file counts as cut short and not as endless.
    told = known | min(max(_samples(data), 1), (1 << _LENGTH_BITS) - 1)
    return data[: _LENGTH.start] + told.to_bytes(5, "big") + data[_LENGTH.stop :]


def _samples(data: bytes) -> int:
    """Return the samples of one channel by the last frame; 0 if there is none."""
    block, at = int.from_bytes(data[_LONGEST_BLOCK], "big"), len(data)
    while (at := max(data.rfind(sync, _FIRST_FRAME_AT, at) for sync in _SYNCS)) >= 0:
        end = _end_of_frame(data[at : at + _LONGEST_HEADER_BYTES].ljust(_LONGEST_HEADER_BYTES, b"\0"), block)
        if end is not None:
            return end
    return 0


def _end_of_frame(header: bytes, block: int) -> int | None:
    """Return the position of the sample behind a frame; None if this is no frame's header."""
    ones = 8 - (header[4] ^ 0xFF).bit_length()
    number_bytes, code = max(ones, 1), header[2] >> 4
    size_at = 4 + number_bytes
    crc_at = size_at + _SIZE_BYTES.get(code, 0) + _RATE_BYTES.get(header[2] & 0x0F, 0)
    if ones > 7 or _crc8(header[:crc_at]) != header[crc_at]:
        return None
    number = header[4] & (0x7F >> ones)
    for byte in header[5:size_at]:
        number = number << 6 | byte & 0x3F
    samples = 192 if code == 1 else 144 << code if code < 6 else 1 << code
    if code in _SIZE_BYTES:
        samples = int.from_bytes(header[size_at : size_at + _SIZE_BYTES[code]], "big") + 1
    return samples + number * (1 if header[1] & 1 else block)


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc << 1 ^ (_CRC_POLYNOMIAL if crc & 0x80 else 0)
    return crc
