"""Print the JSON schema of study files, or the reference of all keys."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--markdown", action="store_true", help="the reference of all keys instead, as Markdown")


def run(arguments: argparse.Namespace) -> None:
    """Print the schema or the reference."""
    from ..study.documentation import markdown
    from ..study.schema import Study

    if arguments.markdown:
        print(markdown(), end="")
        return
    print(json.dumps(Study.model_json_schema(), indent=1))
