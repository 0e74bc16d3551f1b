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
    """Print the presets and the study's own methods."""
    from ..methods import method, method_names

    own = {}
    if arguments.config:
        from ..study import load_study

        own = load_study(arguments.config).methods
    methods = [method(name, own) for name in dict.fromkeys([*method_names(), *own])]
    if arguments.json:
        print(json.dumps({m.name: m.data() for m in methods}, indent=1, ensure_ascii=False))
        return
    width = max(len(m.name) for m in methods)
    for m in methods:
        print(f"{m.name:{width}}  {m.summary}  [{m.source}]" if m.source else f"{m.name:{width}}  {m.summary}")
