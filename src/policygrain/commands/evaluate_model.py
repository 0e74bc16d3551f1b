"""Evaluate any model, without a study: a folder or a name of the Hugging Face hub, on named benchmarks.

Records and protocol are those of a study's evaluation, so `policygrain show OUT` shows them, `--page` their samples.
The same command resumes; with other models in the same folder it adds them to the table of several.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folder or hub name, or NAME=MODEL")
    parser.add_argument(
        "--benchmarks", required=True, help="names of registered sets or families, or .jsonl files, with commas"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("--samples", type=int, help="responses per problem (default: as registered for the benchmark)")
    parser.add_argument("--temperature", type=float, help="0: greedy (default: as registered for the benchmark)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (default: 1)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="longest response (default: 4096)")
    parser.add_argument("--size", type=int, help="only the first problems of each benchmark")
    parser.add_argument("--engine", choices=["auto", "vllm", "transformers"], default="auto")
    parser.add_argument("--grader", choices=["math", "numeric"], default="math")
    parser.add_argument("--extraction", choices=["boxed", "answer_line", "qwen_math"], default="boxed")
    parser.add_argument("--prompt", help="text with {problem} (default: asks for steps and a box)")
    parser.add_argument(
        "--chat", action=argparse.BooleanOptionalAction, help="the chat template (default: where a model has one)"
    )
    parser.add_argument("--revision", help="of a model of the hub")
    parser.add_argument("--root", type=Path, help="folder of problem sets (default: POLICYGRAIN_DATA)")
    parser.add_argument("--seed", type=int, default=7, help="sampling seed (default: 7)")


def run(arguments: argparse.Namespace) -> None:
    """Sample, grade, write the records and the table, and print both."""
    from ..evaluate.any_model import PROMPT, EvaluationOptions, claim, fetched, named, study_of
    from ..evaluate.run import evaluate
    from ..files import atomic_text
    from ..model.loading import load_tokenizer
    from ..results.evaluated_models import find
    from ..results.layout import StudyFolder
    from ..tasks.golds import check_golds
    from ..tasks.sources import check_sources, prepare
    from ..views.leaderboard import leaderboard
    from ..views.show import detail

    models = {name: fetched(model, arguments.revision) for name, model in named(arguments.models).items()}
    chat = arguments.chat
    if chat is None:
        chat = all(load_tokenizer(str(folder)).chat_template for folder in models.values())
    options = EvaluationOptions(
        benchmarks=[name for name in arguments.benchmarks.split(",") if name],
        samples=arguments.samples,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_tokens=arguments.max_tokens,
        size=arguments.size,
        engine=arguments.engine,
        grader=arguments.grader,
        extraction=arguments.extraction,
        prompt=arguments.prompt or PROMPT,
        chat=chat,
        root=arguments.root,
        seed=arguments.seed,
    )
    results = StudyFolder(arguments.out)
    study = study_of(options, "evaluation", str(next(iter(models.values()))))
    check_sources(study)
    claim(results, study)
    prepare(study, results.data)
    check_golds([results.data.benchmark(b.name) for b in study.evaluation.benchmarks], study.grader)
    evaluate(study, {f"{name}/seed0": folder for name, folder in models.items()}, results.data, results)
    groups = find([arguments.out])
    table = leaderboard(groups)
    atomic_text(arguments.out / "leaderboard.md", table)
    print(table if len(groups) > 1 else detail(groups[0]), end="")
