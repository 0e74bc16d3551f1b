"""The command line `policygrain-lab`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from policygrain.cli import repeated
from policygrain.commands.app import call, option
from policygrain.errors import UserError
from policygrain.files import atomic_text, check_out

from .measured.options import Estimators, Options, Rounds

Function = TypeVar("Function", bound=Callable[..., None])
ABOUT = "Diagnoses of objectives, beside PolicyGrain's studies."
app = typer.Typer(name="policygrain-lab", help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False)
SEVERAL = {"--methods", "--steps", "--updates", "--seeds"}  # options that several words may follow
ROLLOUTS, ESTIMATORS = "Rollouts of your own run", "Estimators and studies"  # groups of the help

ROWS = "JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage"
Rollouts = Annotated[Path, option(ROWS, "--rollouts", metavar="FILE")]
Results = Annotated[Path, typer.Argument(help="results of a study: its recorded file, problems and initial models")]
Seeds = Annotated[list[int] | None, option("seeds of the initial models (default: the first)")]
Folder = Annotated[Path | None, option("folder of the records (default: RESULTS/lab)", metavar="FOLDER")]
Json = Annotated[bool, option("print everything as JSON", "--json")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code, 2 after a UserError; ``argv`` is the command line's by default."""
    return call(app, repeated(sys.argv[1:] if argv is None else argv, SEVERAL))


@app.command(rich_help_panel=ROLLOUTS)
def calibrate(
    rollouts: Rollouts,
    share: Annotated[float, option("share of tokens that a range should clip")] = 0.01,
    out: Annotated[Path | None, option("JSON file of what was measured", metavar="FILE")] = None,
) -> None:
    """Measure what clip ranges and corrections do to the rollouts of your own run.

    For the ratio of each grain: its spread, the share that published ranges clip, and the range that clips a wanted
    share of tokens. With log-probabilities of the engine: what published corrections drop, and whether the engine's
    difference from the trainer is noise or bias.
    """
    from .rollouts import calibrate, mismatch
    from .rollouts.anatomy import checks, unrelated
    from .rollouts.files import read_rollouts

    check_out(out)
    read = read_rollouts(rollouts)
    engine, notes = mismatch.measure(read), checks(read)
    content, pasted = dict[str, Any](), list[str]()
    if engine is not None and (reason := calibrate.without_effect(read)) is not None:
        print(f"Clip ranges are not measured: {reason}")
    else:
        grains = calibrate.measure(read, share)
        print(calibrate.table(grains, read, share))
        content = calibrate.data(grains, read, share)
        pasted = [] if unrelated(read) else ["", *calibrate.to_paste(grains)]
    print("\n".join(["", mismatch.table(engine), *(f"note: {note}" for note in notes), *pasted]))
    if out is not None:
        content |= {"engine": None if engine is None else engine.data(), "notes": notes}
        atomic_text(out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@app.command(rich_help_panel=ROLLOUTS)
def anatomy(
    rollouts: Rollouts,
    out: Annotated[Path | None, option("the page (default: anatomy.html, unless --json)", metavar="HTML")] = None,
    as_json: Json = False,
    advantages: Annotated[
        Literal["rows", "method"],
        option("rows: those of the file, for all; method: each objective's own, from reward and group"),
    ] = "rows",
    methods: Annotated[Path | None, option("YAML file with own objectives, as in a study file", metavar="FILE")] = None,
    model: Annotated[str | None, option("compare gradients, too: folder or name of the model of log_probs")] = None,
    step: Annotated[float | None, option("with --model: step whose responses are used (default: the first)")] = None,
    responses: Annotated[int, option("responses whose gradients are compared")] = 64,
    directions: Annotated[int, option("random directions for gradients")] = 64,
    temperature: Annotated[float, option("of the log-probabilities")] = 1.0,
    seed: Annotated[int, option("of random directions and of random choices of objectives")] = 0,
) -> None:
    """Measure how objectives weight the tokens of your own batch, and which of them give the same update.

    No model is needed: the weight of each token's gradient follows from log-probabilities, advantages and masks.
    """
    import torch

    from policygrain.integrations.options import methods_file

    from .rollouts import page
    from .rollouts.anatomy import measure
    from .rollouts.coefficients import Work
    from .rollouts.files import read_rollouts

    for name, number in (("responses", responses), ("directions", directions)):
        if number < 1:
            raise UserError(f"--{name} {number}: expected at least 1.")
    if not temperature > 0:
        raise UserError(f"--temperature {temperature:g}: expected a number above 0, the sampling temperature.")
    if step is not None and not model:
        raise UserError("--step: chooses the responses whose gradients are compared; give --model, too.")
    check_out(out)
    read = read_rollouts(rollouts)
    own = methods_file(methods) if methods else {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    work = Work(read, own, advantages == "method", seed)
    measured = measure(work)
    torch.set_num_threads(threads)
    if model:
        from .rollouts.projection import gradient_cosines

        how = step, responses, directions, temperature, seed
        measured = replace(measured, gradient=gradient_cosines(work, model, *how))
    print(json.dumps(page.data(measured), indent=1) if as_json else page.table(measured))
    if out or not as_json:
        out = out or Path("anatomy.html")
        atomic_text(out, page.page(measured, rollouts.name))
        if not as_json:
            print(f"\n{out}")


@app.command(rich_help_panel=ESTIMATORS)
def cases(
    as_map: Annotated[bool, option("the map of settings on random policies instead of the cases", "--map")] = False,
    seeds: Annotated[int, option("seeds of the learning curves, or random policies in each setting")] = 200,
    as_json: Json = False,
    out: Annotated[Path | None, option("write cases.json, or cases_map.json, and its figure", metavar="FOLDER")] = None,
) -> None:
    """Compare estimators on small tabular policies whose exact gradient is known.

    Every ratio, with and without a clip, in cases where theory predicts the sign of the comparison: one to two minutes.
    `--map`: on random policies, by age of rollouts, length, dependence between tokens and learning rate: three minutes.
    """
    import torch

    from policygrain.figures.style import save
    from policygrain.records import write_record

    from .exact import decision, figure, map_figure
    from .exact import map as regimes
    from .exact.records import CasesRecord, MapRecord

    if seeds < 2:
        raise UserError(f"--seeds {seeds}: an interval over seeds needs at least 2.")
    name = "cases_map" if as_map else "cases"
    check_out(out and out / f"{name}.json")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    record: CasesRecord | MapRecord
    if as_map:
        record = regimes.run_map(seeds)
        printed = regimes.text(record)
    else:
        record = decision.run_cases(seeds)
        printed = decision.text(record)
    print(record.model_dump_json(indent=1) if as_json else printed)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_record(out / f"{name}.json", record)
        drawn = map_figure.draw(record) if isinstance(record, MapRecord) else figure.draw(record)
        save(drawn, out / name)


def options_of(kind: type[Options]) -> Callable[[Function], Function]:
    """Decorator: the command has the fields of ``kind`` as options, and gets them as keywords."""

    def change(function: Function) -> Function:
        own = [p for p in signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        about = {field.name: option(field.metadata["description"]) for field in fields(kind)}
        given = signature(kind, eval_str=True).parameters.values()
        own += [p.replace(annotation=Annotated[p.annotation, about[p.name]]) for p in given]
        function.__dict__["__signature__"] = Signature(own)
        return function

    return change


@app.command(rich_help_panel=ESTIMATORS)
@options_of(Estimators)
def estimators(results: Results, seeds: Seeds = None, out: Folder = None, **options: Any) -> None:
    """Measure gradient estimators on initial models of a study, against the true gradient.

    Bias, noise and usefulness of the update of each method, on the same batches.
    """
    from .measured import estimators

    _measure(estimators.Estimation, estimators.text, Estimators(**options), results, seeds, out)


@app.command(rich_help_panel=ESTIMATORS)
@options_of(Rounds)
def rounds(results: Results, seeds: Seeds = None, out: Folder = None, **options: Any) -> None:
    """Measure one round of updates by each method, from the same policy and rollouts.

    The policy is validated with the same sampling seeds after each method's updates.
    """
    from .measured import rounds

    _measure(rounds.Round, rounds.text, Rounds(**options), results, seeds, out)


def _measure(
    instrument: Any, table: Callable[[Any], list[str]], spec: Options, path: Path, seeds: Any, out: Path | None
) -> None:
    """Measure initial models by an instrument; write the records, and print them as ``table`` shows them."""
    from policygrain.model.device import claim_gpu
    from policygrain.results import StudyResults
    from policygrain.study.dependencies import start_seeds

    from .measured.instrument import measure_starts

    results = StudyResults(path)
    claim_gpu()
    chosen, folder = seeds or start_seeds(results.study)[:1], out or results.folder.path / "lab"
    for record in measure_starts(instrument, spec, results, chosen, folder):
        print("\n".join(table(record)), flush=True)
        for note in getattr(record, "notes", ()):
            print(f"note: {note}", file=sys.stderr)


@app.command(rich_help_panel=ESTIMATORS)
def ranges(
    results: Annotated[Path, typer.Argument(help="results with an experiment `ranges`")],
    out: Annotated[Path | None, option("JSON file with the choice and all candidates", metavar="FILE")] = None,
) -> None:
    """Choose each ratio's clip range among the candidates of a study, on its validation problems.

    Of a ratio's candidates, the one with the largest area under the learning curve, mean over settings and seeds.
    """
    from policygrain.results import StudyResults

    from .ranges import choose_ranges, ranges_text

    check_out(out)
    choice = choose_ranges(StudyResults(results))
    print(ranges_text(choice))
    if out:
        atomic_text(out, json.dumps(choice, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
