"""Damaged and hostile archives: one message, and nothing is left behind."""

from __future__ import annotations

import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain import digests
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.report import freeze as freezing
from policygrain.report.freeze import MANIFEST, thaw


def rewritten(archive: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of ``archive`` whose members, by name, are changed by ``change``."""
    with zipfile.ZipFile(archive) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in members.items():
            new.writestr(name, content)
    return out


def refused(archive: Path, folder: Path) -> str:
    """The message of a thaw that fails and leaves nothing behind: neither in ``folder`` nor beside it."""
    folder.mkdir(exist_ok=True)
    before = sorted(folder.iterdir())
    with pytest.raises(UserError) as raised:
        thaw(archive, folder / "new")
    assert sorted(folder.iterdir()) == before
    assert str(archive) in str(raised.value) and "Nothing was unpacked." in str(raised.value)
    assert len(str(raised.value)) < 1000
    return str(raised.value)


def test_one_flipped_byte_is_found(archive: Path, results: Path, tmp_path: Path) -> None:
    """In any member: its content no longer has the checksum of the manifest."""

    def flip(name: str) -> Callable[[dict[str, bytes]], None]:
        def change(members: dict[str, bytes]) -> None:
            content = bytearray(members[name])
            content[len(content) // 2] ^= 1
            members[name] = bytes(content)

        return change

    for name in ("study.yaml", "runs/tepo/seed0/metrics.jsonl", "figures/dynamics.png"):
        other = rewritten(archive, tmp_path / "other.zip", flip(name))
        assert f"{name} does not match its checksum" in refused(other, tmp_path / "out")


@pytest.mark.parametrize("size", [0, 1, 500, -1, -30])
def test_a_truncated_archive_is_refused(archive: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "torn.zip").write_bytes(archive.read_bytes()[:size])
    assert "is not a frozen study" in refused(tmp_path / "torn.zip", tmp_path / "out")
    assert "No such file" in refused(tmp_path / "missing.zip", tmp_path / "out")


def manifest_of(members: dict[str, bytes]) -> Any:
    return json.loads(members[MANIFEST])


def with_manifest(change: Callable[[Any], Any]) -> Callable[[dict[str, bytes]], None]:
    """Replace the manifest by what ``change`` returns for it."""

    def apply(members: dict[str, bytes]) -> None:
        found = change(manifest_of(members))
        members[MANIFEST] = found if isinstance(found, bytes) else json.dumps(found).encode()

    return apply


def with_file(name: str) -> Callable[[dict[str, bytes]], None]:
    """Add a member and an entry of the manifest that fits it."""

    def apply(members: dict[str, bytes]) -> None:
        manifest = manifest_of(members)
        manifest["files"][name] = manifest["files"]["study.yaml"]
        members[name], members[MANIFEST] = members["study.yaml"], json.dumps(manifest).encode()

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_manifest(lambda m: []), "expected a JSON object"),
        (with_manifest(lambda m: b"{"), "is not JSON"),
        (with_manifest(lambda m: b"\xff\xfe{}"), "MANIFEST.json"),
        (with_manifest(lambda m: b'{"files":' * 200_000), "is not JSON"),
        (with_manifest(lambda m: b" " * 100_000_000), "has 100,000,000 bytes"),
        (with_manifest(lambda m: m | {"schema_version": 99}), "written by a newer version"),
        (with_manifest(lambda m: m | {"files": [1]}), "files"),
        (with_manifest(lambda m: m | {"files": {"study.yaml": "x"}}), "study.yaml"),
        (with_manifest(lambda m: m | {"study": None}), "study"),
        (
            with_manifest(lambda m: m | {"files": m["files"] | {"study.yaml": {"sha256": "0", "size": -1}}}),
            "study.yaml",
        ),
        (lambda m: m.pop(MANIFEST), "it has no MANIFEST.json"),
        (lambda m: m.pop("study.yaml"), "files are missing: study.yaml"),
        (lambda m: m.update({"more.txt": b"x"}), "contains files that are not in its manifest: more.txt"),
        (with_file("../outside.txt"), "not a path inside a study"),
        (with_file("a/../../outside.txt"), "not a path inside a study"),
        (with_file("/tmp/outside.txt"), "not a path inside a study"),
        (with_file("..\\outside.txt"), "not a path inside a study"),
        (with_file("study.yaml/inside"), "is not a frozen study"),
        (with_file("x" * 300), "is not a frozen study"),
        (with_file("runs"), "is not a frozen study"),
        (with_file("."), "is not a frozen study"),
        (with_file("folder/"), "not a path inside a study"),
    ],
)
def test_an_archive_that_is_not_as_it_should_be_is_refused(
    change: Callable[[dict[str, bytes]], None], message: str, archive: Path, tmp_path: Path
) -> None:
    assert message in refused(rewritten(archive, tmp_path / "other.zip", change), tmp_path / "out")
    assert not (tmp_path / "outside.txt").exists() and not Path("/tmp/outside.txt").exists()


def test_a_member_larger_than_the_manifest_says_is_not_unpacked(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 MB of zeros in a megabyte: no more is read than one block beyond what the manifest says."""
    sizes: list[int] = []
    read = zipfile.ZipExtFile.read

    def counted(file: zipfile.ZipExtFile, size: int | None = -1) -> bytes:
        block = read(file, size)
        sizes.append(len(block))
        return block

    monkeypatch.setattr(freezing, "check_free_space", lambda *_: None)
    bomb = rewritten(archive, tmp_path / "bomb.zip", lambda m: m.update({"study.yaml": bytes(2**28)}))
    assert bomb.stat().st_size < 2**20
    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    assert "study.yaml does not match its checksum" in refused(bomb, tmp_path / "out")
    assert sum(sizes) < 2**22


def test_an_archive_for_which_there_is_no_space_is_refused(archive: Path, tmp_path: Path) -> None:
    entry = {"sha256": "0", "size": 10**15}
    large = with_manifest(lambda m: m | {"files": m["files"] | {"study.yaml": entry}})
    with pytest.raises(UserError, match=r"only \d+ MB are free"):
        thaw(rewritten(archive, tmp_path / "other.zip", large), tmp_path / "new")
    assert list(tmp_path.iterdir()) == [tmp_path / "other.zip"]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), to_the_end=st.booleans())
def test_any_flipped_bit_is_refused_or_changes_nothing(archive: Path, place: float, bit: int, to_the_end: bool) -> None:
    """The last kilobytes are the archive's table of contents, where more than contents can go wrong."""
    content = bytearray(archive.read_bytes())
    first = max(0, len(content) - 6000) if to_the_end else 0
    content[first + int(place * (len(content) - first))] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        other, out = Path(folder) / "other.zip", Path(folder) / "new"
        other.write_bytes(content)
        try:
            manifest = thaw(other, out)
        except UserError:
            assert not out.exists()
        else:  # a date, say
            assert all(digests.of_file(out / n, full=True) == f.sha256 for n, f in manifest.files.items())


def test_an_encrypted_member_is_refused(archive: Path, tmp_path: Path) -> None:
    """The flag of encryption set in the local and the central header of one member."""
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as packed:
        local = packed.getinfo("study.yaml").header_offset
    central = content.index(b"study.yaml", content.index(b"PK\x01\x02")) - 46
    for offset in (local + 6, central + 8):
        struct.pack_into("<H", content, offset, struct.unpack_from("<H", content, offset)[0] | 1)
    (tmp_path / "encrypted.zip").write_bytes(content)
    assert "encrypted" in refused(tmp_path / "encrypted.zip", tmp_path / "out")


def test_a_record_that_cannot_be_read_leaves_no_folder(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checksum is right, but drawing fails: the message names it in the archive, also at the second attempt."""
    name = "runs/tepo/seed0/evaluation/records.json"

    def outdate(members: dict[str, bytes]) -> None:
        members[name] = b"{}"
        entry = {"sha256": digests.of_text("{}", full=True), "size": 2}
        with_manifest(lambda m: m | {"files": m["files"] | {name: entry}})(members)

    other = rewritten(archive, tmp_path / "other.zip", outdate)
    for _ in range(2):
        assert main(["thaw", str(other), "--out", str(tmp_path / "new")]) == 2
        said = capsys.readouterr().err
        assert f"{other}/{name}" in said and "Nothing was unpacked." in said
        assert list(tmp_path.iterdir()) == [other]
