"""Pages of tables of published records (docs/pages.py)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from policygrain.report.freeze import thaw

from ..support.files import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return load_script(ROOT / "docs" / "pages.py")


@pytest.mark.parametrize("record", ["laptop", "earlier/hour"])
def test_a_page_has_its_record_s_size_and_tables(record: str, pages: ModuleType, tmp_path: Path) -> None:
    """The committed pages begin as the generator writes them; their tables are drawn by `make pages`."""
    thaw(ROOT / "docs" / "records" / f"{record}.zip", tmp_path / record)
    drawn = tmp_path / record / "redrawn"
    drawn.mkdir(parents=True)
    for table in pages.WHOLE.values():
        (drawn / f"{table}.md").write_text(f"\n| {table} |\n\n")
    (drawn / "ablation.md").write_text("| ablation |\n")
    for page in (page for page in pages.PAGES if page.record == record):
        committed = (ROOT / "docs" / page.path).read_text()
        # The digest changes with the version that reads the record.
        assert committed.startswith(pages.head(page, tmp_path / record).partition("digest")[0])
        written = pages.text(page, tmp_path / record)
        for heading, table in page.tables.items():
            assert f"## {heading}\n\n| {table} |\n" in written if heading else written.endswith(f"\n| {table} |\n")
            assert f"## {heading}\n" in committed or not heading


def test_every_page_and_figure_is_of_a_published_record(pages: ModuleType) -> None:
    for name, (record, _) in pages.FIGURES.items():
        assert (ROOT / "docs" / "records" / f"{record}.zip").exists()
        assert (ROOT / "docs" / "figures" / f"{name}.png").exists()
    for page in pages.PAGES:
        assert (ROOT / "docs" / "records" / f"{page.record}.zip").exists() and (ROOT / "docs" / page.path).exists()
