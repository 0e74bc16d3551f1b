"""List the methods."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--config", type=Path, help="study file whose own methods are listed, too")


def run(arguments: argparse.Namespace) -> None:
    """Print the presets, those to compare ratios with, and the study's own methods."""
    from ..objective import comparison_names, method, method_names

    own = {}
    if arguments.config:
        from ..study import load_study

        own = load_study(arguments.config).methods
    groups = {
        "Published methods": method_names(),
        "To compare ratios: they differ in the ratio and its clip alone": comparison_names(),
    }
    groups["Methods of the study"] = [name for name in own if not any(name in names for names in groups.values())]
    methods = {name: method(name, own) for names in groups.values() for name in names}
    if arguments.json:
        print(json.dumps({name: m.data() for name, m in methods.items()}, indent=1, ensure_ascii=False))
        return
    width = max(map(len, methods))
    for title, names in groups.items():
        if names:
            print(f"{title}:")
        for m in (methods[name] for name in names):
            print(f"  {m.name:{width}}  {m.summary}" + (f"  [{m.source}]" if m.source else ""))
