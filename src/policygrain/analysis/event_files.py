"""TensorBoard event files: steps and scalars, read without TensorBoard and protobuf.

A file is a sequence of records: the length of the payload (8 bytes, little-endian), its checksum (4), the payload, and
the payload's checksum (4). A payload is a protocol buffer `Event`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError

# Numbers of fields in TensorFlow's event.proto, summary.proto and tensor.proto.
STEP, SUMMARY = 2, 5
VALUE, TAG, SIMPLE_VALUE, TENSOR = 1, 1, 2, 8
TYPE, SHAPE, CONTENT = 1, 2, 4
FLOATS = {1: ("<f", 5), 2: ("<d", 6)}  # type of a tensor → format, and field of values that are not in CONTENT
POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed


def scalars(path: Path, ends: list[str]) -> Iterator[tuple[str, int, dict[str, float]]]:
    """(place, step, tag → value) of each event with scalars, `simple_value` and tensors of one number.

    Reading ends at a record that is cut off, as in a run that goes on, or damaged; ``ends`` gets a note. UserError if
    that is the first record.
    """
    with path.open("rb") as file:
        for number in itertools.count(1):
            head = file.read(12)
            if not head:
                return
            where = f"{path}, record {number}"
            body, length = b"", int.from_bytes(head[:8], "little")
            is_damaged = len(head) == 12 and _checksum(head[:8]) != head[8:]
            if not is_damaged:
                body = file.read(length + 4)
                is_damaged = len(body) == length + 4 and _checksum(body[:length]) != body[length:]
            if is_damaged and number == 1:
                raise UserError(f"{path}: is no event file of TensorBoard; the checksum of its first record is wrong.")
            if is_damaged or len(body) < length + 4:
                what = "is damaged" if is_damaged else "is cut off"
                ends.append(f"{where}: {what}; the file is read up to there")
                return
            fields = [*_fields(body[:length])]
            step = next((int.from_bytes(value, "little", signed=True) for key, value in fields if key == STEP), 0)
            summaries = [value for key, value in fields if key == SUMMARY]
            entries = [dict(_fields(entry)) for one in summaries for key, entry in _fields(one) if key == VALUE]
            values = {entry[TAG].decode(): x for entry in entries if TAG in entry and (x := _scalar(entry)) is not None}
            if values:
                yield where, step, values


def _scalar(entry: dict[int, bytes]) -> float | None:
    """The number of an entry of a summary, or None: an image, a histogram, a text, a tensor of several numbers."""
    form, raw = "<f", entry.get(SIMPLE_VALUE)
    if raw is None:
        tensor = dict(_fields(entry.get(TENSOR, b"")))
        kind = int.from_bytes(tensor.get(TYPE, b""), "little")
        if kind not in FLOATS or tensor.get(SHAPE):
            return None
        form, values = FLOATS[kind]
        raw = tensor.get(CONTENT) or tensor.get(values, b"")
    return float(struct.unpack(form, raw)[0]) if len(raw) == struct.calcsize(form) else None


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the fields of a protocol buffer; that of an integer is little-endian, in eight bytes."""
    at = 0
    while at < len(message):
        key, at = _integer(message, at)
        if key & 7 == 0:
            value, at = _integer(message, at)
            content = (value & (1 << 64) - 1).to_bytes(8, "little")
        else:
            size, at = _integer(message, at) if key & 7 == 2 else ({1: 8, 5: 4}.get(key & 7, len(message)), at)
            content, at = message[at : at + size], at + size
        yield key >> 3, content


def _integer(message: bytes, at: int) -> tuple[int, int]:
    """A varint at a place, and the place after it."""
    end = 1 + next(place for place in itertools.count(at) if message[place] < 128)
    return sum((byte & 127) << 7 * k for k, byte in enumerate(message[at:end])), end


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
    return crc


TABLE = [_crc_of_byte(byte) for byte in range(256)]


def _checksum(data: bytes) -> bytes:
    """The CRC-32C, rotated and shifted as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")
