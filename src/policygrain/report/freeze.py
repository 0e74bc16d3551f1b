"""Archives of studies: records with checksums, from which figures and tables can be made again without training."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from .. import digests
from ..errors import UserError
from ..files import check_free_space, new_folder
from ..objective import method
from ..paths import START, StudyFolder
from ..progress import Progress
from ..provenance import commit, hardware
from ..records import Entry, Record, parse_record
from ..results import StudyResults

OLD_SETTINGS = {"ahead": "off_policy_steps"}

MANIFEST = "MANIFEST.json"
LARGEST_MANIFEST = 2**26  # bytes
AGAIN = "Nothing was unpacked."
# Exceptions from reading a damaged ZIP file: the module's and those of its decompressors.
BROKEN = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)


class FrozenFile(Entry):
    """A file in an archive."""

    sha256: str
    size: int


class Manifest(Record):
    """`MANIFEST.json` of an archive."""

    study: str
    frozen: str
    commit: str
    hardware: str
    environment: list[str]
    files: dict[str, FrozenFile]


def freeze(results: Path, out: Path, small: bool = False) -> Manifest:
    """Write the records of a study to the ZIP file ``out``.

    Models and checkpoints are left out: they are large, and figures do not need them; the records have their digests.
    ``small`` also leaves out problems, responses, views of tokens and the figures themselves, which tables and figures
    do not need either. Such an archive contains no text of a problem set, whose licence may forbid publishing it.
    """
    folder = StudyFolder(results)
    files = sorted(set(_files(StudyResults(results), small)))
    out.parent.mkdir(parents=True, exist_ok=True)
    check_free_space(out.parent, sum(path.stat().st_size for path in files) // 2**20 + 10)
    temporary = out.with_name(f".{out.name}.tmp")
    frozen: dict[str, FrozenFile] = {}
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in Progress(files, "files frozen", len(files)):
            name = path.relative_to(folder.path).as_posix()
            content = path.read_bytes()
            frozen[name] = FrozenFile(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            archive.writestr(name, content)
        manifest = Manifest(
            study=results.resolve().name,
            frozen=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit(),
            hardware=hardware(),
            environment=sorted(f"{d.metadata['Name']}=={d.version}" for d in distributions()),
            files=frozen,
        )
        archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
    temporary.replace(out)
    return manifest


def _files(results: StudyResults, small: bool) -> Iterator[Path]:
    """The records of the study's runs, and its figures, tables and report."""
    folder = results.folder
    yield folder.study
    for run in results.trained.values():
        yield from (p for p in (run.config, run.summary, run.metrics, run.timings, run.mtp_heads) if p.exists())
        yield from () if small else run.token_steps().values()
    for name in results.model_evaluations:
        evaluation = folder.evaluation(name)
        yield from [evaluation.record] if small else _all_in(evaluation.path)
    yield from folder.path.glob(f"{START}/*/{folder.start(0).record.name}")
    for path in folder.folders:
        if not small or path != folder.figure("any").parent:
            problems = small and path == folder.data.path
            yield from (p for p in _all_in(path) if not (problems and p.suffix == ".jsonl"))
    yield from (p for p in (folder.report, folder.tracking) if p.exists() and not small)


def _all_in(path: Path) -> Iterator[Path]:
    return (p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))


def thaw(
    archive: Path, out: Path, trust: bool = False, finish: Callable[[Path], None] = lambda folder: None
) -> Manifest:
    """Unpack ``archive`` into the empty folder ``out``, each file checked against its size and checksum.

    The folder is created only if all files are correct and ``finish``, which is called with it under a temporary name,
    raises nothing. No content of the archive is executed or imported. A study that names custom functions, which
    training it would import, is refused unless ``trust``.
    """
    with new_folder(out) as temporary:
        manifest = _unpacked(archive, temporary)
        try:
            if (functions := _own_functions(temporary)) and not trust:
                raise UserError(
                    f"{archive}: its study names functions that training it would import: {', '.join(functions)}. "
                    "Read them, then use --trust."
                )
            finish(temporary)
        except UserError as error:  # about a record, in a folder that is removed
            raise UserError(f"{str(error).replace(str(temporary), str(archive))} {AGAIN}") from error
    return manifest


def _unpacked(archive: Path, out: Path) -> Manifest:
    """Unpack into ``out``; UserError for a damaged archive."""
    try:
        with zipfile.ZipFile(archive) as packed:
            manifest = _manifest(packed, archive)
            check_free_space(out.parent, sum(f.size for f in manifest.files.values()) // 2**20 + 10)
            sizes = {info.filename: info.file_size for info in packed.infolist()}
            if wrong := [name for name, expected in manifest.files.items() if sizes[name] != expected.size]:
                raise UserError(f"{archive}: {wrong[0]} does not match its checksum. {AGAIN}")
            packed.extractall(out, manifest.files)  # at most as many bytes of each as its entry says
    except BROKEN as error:
        raise UserError(f"{archive}: is not a frozen study ({error}). {AGAIN}") from error
    for name, expected in Progress(manifest.files.items(), "files verified", len(manifest.files)):
        if digests.of_file(out / name, full=True) != expected.sha256:
            raise UserError(f"{archive}: {name} does not match its checksum. {AGAIN}")
    _rename_settings(out)
    return manifest


def _rename_settings(results: Path) -> None:
    """Give training keys in records of an earlier version their present names; `study.load` does it in study files."""
    for old, new in OLD_SETTINGS.items():
        for path in sorted(results.rglob("*"), reverse=True):  # what is in a folder before the folder
            if path.suffix == ".json" and path.is_file():
                text = path.read_text(encoding="utf-8")
                renamed = re.sub(rf'"(training\.)?{old}"', rf'"\1{new}"', text).replace(f"+{old}=", f"+{new}=")
                if renamed != text:
                    path.write_text(renamed, encoding="utf-8")
            if f"+{old}=" in path.name:
                path.rename(path.with_name(path.name.replace(f"+{old}=", f"+{new}=")))


def _manifest(packed: zipfile.ZipFile, archive: Path) -> Manifest:
    try:
        info = packed.getinfo(MANIFEST)
    except KeyError as error:
        raise UserError(f"{archive}: is not a frozen study: it has no {MANIFEST}. {AGAIN}") from error
    if info.file_size > LARGEST_MANIFEST:
        raise UserError(f"{archive}: its {MANIFEST} has {info.file_size:,} bytes. {AGAIN}")
    try:
        data = json.loads(packed.read(info))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{archive}: its {MANIFEST} is not JSON ({error}). {AGAIN}") from error
    manifest = parse_record(Manifest, data, f"{archive}, {MANIFEST}", AGAIN)
    unknown = set(packed.namelist()) - {MANIFEST, *manifest.files}
    missing = set(manifest.files) - set(packed.namelist())
    for names, what in ((unknown, "contains files that are not in its manifest"), (missing, "files are missing")):
        if names:
            raise UserError(f"{archive}: {what}: {', '.join(sorted(names)[:5])}. {AGAIN}")
    for name in manifest.files:
        path = PurePosixPath(name)
        if path.as_posix() != name or path.is_absolute() or ".." in path.parts or "\\" in name:
            raise UserError(f"{archive}: {name!r} is not a path inside a study. {AGAIN}")
    return manifest


def _own_functions(results: Path) -> list[str]:
    """The functions that a study's methods name besides those of this package. They are not imported."""
    methods = StudyResults(results).study.methods
    return sorted({function for name in methods for function in method(name, methods).custom_functions})
