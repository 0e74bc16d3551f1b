"""TensorBoard's event files: scalars of both forms, damage, and several files of a run."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.analysis.run_logs import read_runs
from policygrain.errors import UserError

from ..support.batches import few

WRITTEN = (  # by tensorboard 2.21.0
    "4800000000000000fe92489d09a11cb4d21ec1da411a0d627261696e2e4576656e743a32522e0a2c74656e736f72626f6172642e73756d6d617279"
    "2e7772697465722e6576656e745f66696c655f777269746572e9a8bef31c00000000000000c8c1951d0900002040fc54d94110032a0f0a0d0a0672"
    "6577617264150000003f6a135621300000000000000095f5d05f0900002040fc54d94110042a230a210a06726577617264420a080112002a040000"
    "803e4a0b0a090a077363616c6172730e6b8ab2"
)


def masked(data: bytes) -> bytes:
    """TFRecord's checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for bit in range(8 * len(data)):
        odd = (crc ^ (data[bit // 8] >> bit % 8)) & 1
        crc = crc >> 1 ^ (0x82F63B78 if odd else 0)
    crc = ~crc & 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15) + (crc << 17) + 0xA282EAD8) % 2**32)


def varint(number: int) -> bytes:
    number %= 2**64
    high, low = divmod(number, 128)
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


VERSION = record(b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))


def value(step: int, content: bytes, tag: str = "reward") -> bytes:
    """An event with one entry of a summary."""
    return record(b"\x10" + varint(step) + field(5, field(1, field(1, tag.encode()) + content)))


def scalar(step: int, number: float, tag: str = "reward") -> bytes:
    return value(step, b"\x15" + struct.pack("<f", number), tag)


def tensor(step: int, kind: int, content: bytes) -> bytes:
    """``content``: fields 2 (shape), 4 (bytes), 5 (floats), 6 (doubles) and 8 (texts)."""
    return value(step, field(8, b"\x08" + bytes([kind]) + content))


def write(path: Path, *records: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(VERSION + b"".join(records))
    return path


def read(place: Path) -> tuple[list[float], list[float], tuple[str, ...]]:
    (run,) = read_runs([str(place)], "reward")
    return [*run.steps], [*run.values], run.notes


def test_a_file_that_tensorboard_wrote_is_read(tmp_path: Path) -> None:
    """The bytes are those of tensorboard's own writer: its version, a scalar at step 3, a scalar tensor at step 4."""
    path = tmp_path / "events.out.tfevents.1700000000.host"
    path.write_bytes(bytes.fromhex(WRITTEN))
    assert read(path) == ([3, 4], [0.5, 0.25], ())


@few
@given(
    points=st.dictionaries(st.integers(-(2**53), 2**53), st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    form=st.sampled_from(("simple", "content", "values", "double")),
)
def test_every_form_of_a_scalar(points: dict[int, float], form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    writers = {
        "simple": scalar,
        "content": lambda k, x: tensor(k, 1, field(2, b"") + field(4, struct.pack("<f", x))),
        "values": lambda k, x: tensor(k, 1, field(5, struct.pack("<f", x))),
        "double": lambda k, x: tensor(k, 2, field(6, struct.pack("<d", x))),
    }
    in_order = dict(sorted(points.items()))
    path = write(tmp_path_factory.mktemp("a") / "x.tfevents.1", *(writers[form](k, x) for k, x in in_order.items()))
    assert read(path) == ([*map(float, in_order)], [*in_order.values()], ())


def test_what_is_no_scalar_is_left_out(tmp_path: Path) -> None:
    """A histogram, a text, a tensor of one number in a list, and a tensor of several."""
    others = [
        value(1, field(5, b"123")),
        tensor(2, 7, field(8, b"text")),
        tensor(3, 1, field(2, field(2, b"\x08\x01")) + field(5, struct.pack("<f", 7.0))),
        tensor(4, 1, field(2, field(2, b"\x08\x02")) + field(4, b"x" * 8)),
    ]
    path = write(tmp_path / "events.out.tfevents.1", *others, scalar(5, 0.0))
    assert read(path) == ([5], [0], ())
    with pytest.raises(UserError, match=r"has no metric 'rewards'.* Did you mean 'reward'\? It has 'reward'"):
        read_runs([str(path)], "rewards")


@few
@given(data=st.data())
def test_a_file_is_read_up_to_where_it_is_cut_off_or_damaged(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At any byte of the last two of four scalars, or in the first record, which is an error."""
    whole = [scalar(k, k / 4) for k in range(4)]
    path = write(tmp_path_factory.mktemp("a") / "events.out.tfevents.1", *whole)
    content = path.read_bytes()
    first, sizes = len(VERSION), [len(x) for x in whole]
    place = data.draw(st.integers(first + sum(sizes[:2]), len(content) - 1), label="place")
    record_number = 2 + sum(place >= first + sum(sizes[:k]) for k in (1, 2, 3))
    before = [k / 4 for k in range(record_number - 2)]
    if data.draw(st.booleans(), label="cut"):
        path.write_bytes(content[:place])
        is_whole = place == first + sum(sizes[: record_number - 2])
        note = () if is_whole else (f"{path}, record {record_number}: is cut off; the file is read up to there",)
    else:
        changed = bytes([content[place] ^ data.draw(st.integers(1, 255), label="change")])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        note = (f"{path}, record {record_number}: is damaged; the file is read up to there",)
    _, values, notes = read(path)
    assert (values, notes) == (before, note)
    path.write_bytes(b"x" + content[1:])
    with pytest.raises(UserError, match="is no event file of TensorBoard"):
        read(path)


def test_the_files_of_a_folder_are_one_run_that_was_resumed(tmp_path: Path) -> None:
    """The later file logs steps 2 and 3 again, by the policy for all logs; the folder may be inside the one given."""
    folder = tmp_path / "run_seed3" / "runs" / "Nov23_host"
    write(folder / "events.out.tfevents.1700000009.host.1.0", *(scalar(k, 10.0 + k) for k in (2, 3)))
    write(folder / "events.out.tfevents.1700000001.host.1.0", *(scalar(k, float(k)) for k in (0, 1, 2, 2, 3)))
    write(folder / "1700000001.5" / "events.out.tfevents.1700000001.host.1.1", scalar(0, 9.0, "hparam/loss"))
    for place in (folder, tmp_path / "run_seed3"):
        (run,) = read_runs([str(place)], "reward")
        assert ([*run.steps], [*run.values], run.seed) == ([0, 1, 2, 3], [0, 1, 12, 13], 3)
        assert "3 of 7 values were logged again (1 restarts, 1 doubled steps)" in run.notes[0]
    write(tmp_path / "run_seed3" / "runs" / "Nov24_host" / "events.out.tfevents.1700000099.host", scalar(0, 1.0))
    with pytest.raises(UserError, match=r"run_seed3: has runs/Nov23_host, runs/Nov24_host: name one"):
        read_runs([str(tmp_path / "run_seed3")], "reward")


def test_files_without_scalars_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="empty"):
        read(write(tmp_path / "a.tfevents.1"))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read(tmp_path / "b.tfevents.1")
