"""Commands about models and answers without a study."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace

from .declare import command, flag, option, path


@command(
    option("models", "folder or hub name, or NAME=MODEL", nargs="+", metavar="MODEL"),
    option("--benchmarks", "names of registered sets or families, or .jsonl files, with commas", required=True),
    path("--out", "folder for the records", required=True),
    option("--samples", "responses per problem (default: as registered for the benchmark)", type=int),
    option("--temperature", "0: greedy (default: as registered for the benchmark)", type=float),
    option("--top-p", "nucleus sampling (default: 1)", type=float, default=1.0),
    option("--max-tokens", "longest response (default: 4096)", type=int, default=4096),
    option("--size", "only the first problems of each benchmark", type=int),
    option("--engine", choices=["auto", "vllm", "transformers"], default="auto"),
    option("--grader", choices=["math", "numeric"], default="math"),
    option("--extraction", choices=["boxed", "answer_line", "qwen_math"], default="boxed"),
    option("--prompt", "text with {problem} (default: asks for steps and a box)"),
    option("--chat", "the chat template (default: where a model has one)", action=BooleanOptionalAction),
    option("--revision", "of a model of the hub"),
    path("--root", "folder of problem sets (default: POLICYGRAIN_DATA)"),
    option("--seed", "sampling seed (default: 7)", type=int, default=7),
)
def evaluate_model(arguments: Namespace) -> None:
    """Evaluate any model, without a study: a folder or a name of the Hugging Face hub, on named benchmarks.

    Records and protocol are those of a study's evaluation, so `policygrain show OUT` shows them, `--page` their
    samples. The same command resumes; with other models in the same folder it adds them to the table of several.
    """
    from ..evaluate.any_model import PROMPT, EvaluationOptions, claim, fetched, named, study_of
    from ..evaluate.evaluation import evaluate
    from ..files import atomic_text
    from ..model.loading import load_tokenizer
    from ..report.show import detail, leaderboard
    from ..results.evaluated_models import find
    from ..results.layout import StudyFolder
    from ..tasks.golds import check_golds
    from ..tasks.sources import check_sources, prepare

    models = {name: fetched(model, arguments.revision) for name, model in named(arguments.models).items()}
    chat = arguments.chat
    if chat is None:
        chat = all(load_tokenizer(str(folder)).chat_template for folder in models.values())
    benchmarks = [name for name in arguments.benchmarks.split(",") if name]
    values = {name: getattr(arguments, name) for name in EvaluationOptions._fields}
    options = EvaluationOptions(
        **{**values, "benchmarks": benchmarks, "prompt": arguments.prompt or PROMPT, "chat": chat}
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


@command(
    path("file", "lines with `gold` and `prediction` or `completion`", metavar="FILE.jsonl"),
    path("--out", "JSON Lines file: the same lines with `correct` and `status`", required=True),
    option("--workers", "processes (default: one per processor)", type=int),
    option("--seconds", "processor time limit per answer (default: 1)", type=float, default=1.0),
    option("--relative-tolerance", "for numbers, as a share of the gold answer", type=float),
    option("--extraction", "from completions: boxed, answer_line or qwen_math (default: boxed)", default="boxed"),
    flag("--strict", "end with an error if a gold answer cannot be read"),
    flag("--list-answer", "gold answers are lists in any order"),
)
def grade(arguments: Namespace) -> None:
    """Grade a file of answers.

    A `prediction` is compared with the gold answer as it stands; from a `completion` the answer is extracted first.
    """
    from ..grading import MathGrader, Options
    from ..grading.grade_file import grade

    options = Options(relative_tolerance=arguments.relative_tolerance, list_answer=arguments.list_answer)
    with MathGrader(arguments.workers, arguments.seconds, extraction=arguments.extraction) as grader:
        counts = grade(arguments.file, arguments.out, grader, options, arguments.strict)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
