"""A study in one archive: what its numbers hang on, with checksums; unpacked, it is redrawn without training."""

from __future__ import annotations

import hashlib
import json
import zipfile
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..progress import Progress
from ..provenance import commit, hardware

MANIFEST = "MANIFEST.json"
# Models and checkpoints are left out: they are large, and no figure reads them. Their digests are in the records.
KEPT = (
    "study.yaml",
    "runs/*/seed*/summary.json",
    "runs/*/seed*/metrics.jsonl",
    "runs/*/seed*/timings.jsonl",
    "runs/*/seed*/heads.json",
    "runs/*/seed*/tokens/*.json",
    "runs/*/seed*/evaluation/*",
    "start/*/start.json",
    "evaluation/**/*",
    "probe/*.json",
    "data/**/*",
    "figures/*",
    "tables/*",
    "report.html",
)


def freeze(results: Path, out: Path) -> dict[str, Any]:
    """Write the records under ``results`` to the ZIP file ``out``; returns its manifest."""
    if not (results / "study.yaml").exists():
        raise UserError(f"{results}: no study.yaml here; it must be a study's results, such as results/laptop.")
    files = sorted({path for pattern in KEPT for path in results.glob(pattern) if path.is_file()})
    manifest: dict[str, Any] = {
        "study": results.name,
        "frozen": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": hardware(),
        "environment": sorted(f"{d.metadata['Name']}=={d.version}" for d in distributions()),
        "files": {},
    }
    temporary = out.with_name(f".{out.name}.tmp")
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in Progress(files, "files frozen", len(files)):
            name, content = path.relative_to(results).as_posix(), path.read_bytes()
            manifest["files"][name] = hashlib.sha256(content).hexdigest()
            archive.writestr(name, content)
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
    temporary.replace(out)
    return manifest


def thaw(archive: Path, out: Path) -> dict[str, Any]:
    """Unpack ``archive`` into the empty folder ``out`` every file held against its checksum; returns the manifest."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: is not empty; choose another folder, nothing is written over.")
    try:
        with zipfile.ZipFile(archive) as packed:
            manifest: dict[str, Any] = json.loads(packed.read(MANIFEST))
            broken = [name for name, digest in manifest["files"].items() if _digest(packed, name) != digest]
            if broken:
                raise UserError(
                    f"{archive}: does not match its checksums: {', '.join(broken[:5])}. Nothing was unpacked."
                )
            unknown = set(packed.namelist()) - {MANIFEST, *manifest["files"]}
            if unknown:
                raise UserError(
                    f"{archive}: holds files that its manifest does not name: {', '.join(sorted(unknown)[:5])}."
                )
            packed.extractall(out, members=list(manifest["files"]))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise UserError(f"{archive}: is no frozen study ({error}).") from error
    return manifest


def _digest(packed: zipfile.ZipFile, name: str) -> str:
    try:
        return hashlib.sha256(packed.read(name)).hexdigest()
    except (KeyError, zipfile.BadZipFile):
        return ""
