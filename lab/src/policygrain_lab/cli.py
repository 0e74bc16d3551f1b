"""The command line `policygrain-lab`."""

from __future__ import annotations

import inspect
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from policygrain.errors import UserError
from policygrain.files import atomic_json, atomic_text, check_out

from .measured.options import Estimators, Rounds

ROWS = "JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code, 2 after a UserError; ``argv`` is the command line's by default."""
    arguments = parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except UserError as error:
        print(f"policygrain-lab: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parser() -> ArgumentParser:
    """All commands with their options."""
    top = ArgumentParser(prog="policygrain-lab", description="Diagnoses of objectives, beside PolicyGrain's studies.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[Namespace], None]) -> ArgumentParser:
        text = inspect.getdoc(run) or ""
        one = commands.add_parser(run.__name__, help=text.partition("\n")[0], description=text)
        one.set_defaults(run=run)
        return one

    of = command(calibrate)
    of.add_argument("--rollouts", type=Path, required=True, metavar="FILE", help=ROWS)
    of.add_argument(
        "--share", type=float, default=0.01, help="share of tokens that a range should clip (default: 0.01)"
    )
    of.add_argument("--out", type=Path, metavar="FILE", help="JSON file of what was measured")

    of = command(anatomy)
    of.add_argument("--rollouts", type=Path, required=True, metavar="FILE", help=ROWS)
    of.add_argument("--out", type=Path, metavar="HTML", help="the page (default: anatomy.html, unless --json)")
    of.add_argument("--json", action="store_true", help="print everything as JSON")
    advantages = "rows: those of the file, for all; method: each objective's own, from reward and group"
    of.add_argument("--advantages", choices=("rows", "method"), default="rows", help=advantages)
    of.add_argument("--methods", type=Path, metavar="FILE", help="YAML file with own objectives, as in a study file")
    of.add_argument("--model", help="compare gradients, too: the folder or name of the model of log_probs")
    of.add_argument("--step", type=float, help="with --model: the step whose responses are used (default: the first)")
    of.add_argument("--responses", type=int, default=64, help="responses whose gradients are compared (default: 64)")
    of.add_argument("--directions", type=int, default=64, help="random directions for gradients (default: 64)")
    of.add_argument("--temperature", type=float, default=1.0, help="of the log-probabilities (default: 1)")
    of.add_argument("--seed", type=int, default=0, help="of random directions and of random choices of objectives")

    of = command(cases)
    of.add_argument("--map", action="store_true", help="the map of settings on random policies instead of the cases")
    of.add_argument("--seeds", type=int, default=200, metavar="N", help="seeds of the learning curves, or random "
                    "policies in each setting (default: 200)")  # fmt: skip
    of.add_argument("--json", action="store_true", help="print everything as JSON")
    of.add_argument("--out", type=Path, metavar="FOLDER", help="write cases.json, or cases_map.json, and its figure")

    for run, options in ((estimators, Estimators), (rounds, Rounds)):
        of = command(run)
        of.add_argument("results", type=Path, metavar="RESULTS", help="results of a study: its recorded file, problems "
                        "and initial models are used")  # fmt: skip
        options.add_to(of)
        of.add_argument("--seeds", type=int, nargs="+", help="seeds of the initial models (default: the first)")
        of.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the records (default: RESULTS/lab)")

    of = command(ranges)
    of.add_argument("results", type=Path, metavar="RESULTS", help="results with an experiment `ranges`")
    of.add_argument("--out", type=Path, metavar="FILE", help="JSON file with the choice and all candidates")
    return top


def calibrate(arguments: Namespace) -> None:
    """Measure what clip ranges and corrections do to the rollouts of your own run.

    For the ratio of each grain: its spread, the share that published ranges clip, and the range that clips a wanted
    share of tokens. With log-probabilities of the engine: what published corrections drop, and whether the engine's
    difference from the trainer is noise or bias.
    """
    from .rollouts import calibrate, mismatch
    from .rollouts.anatomy import checks, unrelated
    from .rollouts.files import read_rollouts

    check_out(arguments.out)
    rollouts = read_rollouts(arguments.rollouts)
    engine, notes = mismatch.measure(rollouts), checks(rollouts)
    content, pasted = dict[str, Any](), list[str]()
    if engine is not None and (reason := calibrate.without_effect(rollouts)) is not None:
        print(f"Clip ranges are not measured: {reason}")
    else:
        grains = calibrate.measure(rollouts, arguments.share)
        print(calibrate.table(grains, rollouts, arguments.share))
        content = calibrate.data(grains, rollouts, arguments.share)
        pasted = [] if unrelated(rollouts) else ["", *calibrate.to_paste(grains)]
    print("\n".join(["", mismatch.table(engine), *(f"note: {note}" for note in notes), *pasted]))
    if arguments.out is not None:
        content |= {"engine": None if engine is None else engine.data(), "notes": notes}
        atomic_json(arguments.out, content)


def anatomy(arguments: Namespace) -> None:
    """Measure how objectives weight the tokens of your own batch, and which of them give the same update.

    No model is needed: the weight of each token's gradient follows from log-probabilities, advantages and masks.
    """
    import torch

    from policygrain.integrations.options import methods_file

    from .rollouts import page
    from .rollouts.anatomy import measure
    from .rollouts.coefficients import Work
    from .rollouts.files import read_rollouts

    for name in ("responses", "directions"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} {getattr(arguments, name)}: expected at least 1.")
    if not arguments.temperature > 0:
        raise UserError(
            f"--temperature {arguments.temperature:g}: expected a number above 0, the sampling temperature."
        )
    if arguments.step is not None and not arguments.model:
        raise UserError("--step: chooses the responses whose gradients are compared; give --model, too.")
    check_out(arguments.out)
    rollouts = read_rollouts(arguments.rollouts)
    methods = methods_file(arguments.methods) if arguments.methods else {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    work = Work(rollouts, methods, arguments.advantages == "method", arguments.seed)
    measured = measure(work)
    torch.set_num_threads(threads)
    if arguments.model:
        from .rollouts.projection import gradient_cosines

        how = arguments.step, arguments.responses, arguments.directions, arguments.temperature, arguments.seed
        measured = replace(measured, gradient=gradient_cosines(work, arguments.model, *how))
    print(json.dumps(page.data(measured), indent=1) if arguments.json else page.table(measured))
    if arguments.out or not arguments.json:
        out = arguments.out or Path("anatomy.html")
        atomic_text(out, page.page(measured, arguments.rollouts.name))
        if not arguments.json:
            print(f"\n{out}")


def cases(arguments: Namespace) -> None:
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

    if arguments.seeds < 2:
        raise UserError(f"--seeds {arguments.seeds}: an interval over seeds needs at least 2.")
    name = "cases_map" if arguments.map else "cases"
    check_out(arguments.out and arguments.out / f"{name}.json")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    record: CasesRecord | MapRecord
    if arguments.map:
        record = regimes.run_map(arguments.seeds)
        printed = regimes.text(record)
    else:
        record = decision.run_cases(arguments.seeds)
        printed = decision.text(record)
    print(record.model_dump_json(indent=1) if arguments.json else printed)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_record(arguments.out / f"{name}.json", record)
        drawn = map_figure.draw(record) if isinstance(record, MapRecord) else figure.draw(record)
        save(drawn, arguments.out / name)


def estimators(arguments: Namespace) -> None:
    """Measure gradient estimators on initial models of a study, against the true gradient.

    Bias, noise and usefulness of the update of each method, on the same batches.
    """
    from .measured import estimators

    _measure(arguments, estimators.Estimation, estimators.text)


def rounds(arguments: Namespace) -> None:
    """Measure one round of updates by each method, from the same policy and rollouts.

    The policy is validated with the same sampling seeds after each method's updates.
    """
    from .measured import rounds

    _measure(arguments, rounds.Round, rounds.text)


def _measure(arguments: Namespace, instrument: Any, table: Callable[[Any], list[str]]) -> None:
    """Measure initial models by an instrument; write the records, and print them as ``table`` shows them."""
    from policygrain.model.device import claim_gpu
    from policygrain.results import StudyResults
    from policygrain.study.stages import start_seeds

    from .measured.instrument import measure_starts

    results, options = StudyResults(arguments.results), instrument.options.of(arguments)
    out = arguments.out or results.folder.path / "lab"
    claim_gpu()
    for record in measure_starts(instrument, options, results, arguments.seeds or start_seeds(results.study)[:1], out):
        print("\n".join(table(record)), flush=True)
        for note in getattr(record, "notes", ()):
            print(f"note: {note}", file=sys.stderr)


def ranges(arguments: Namespace) -> None:
    """Choose each ratio's clip range among the candidates of a study, on its validation problems.

    Of a ratio's candidates, the one with the largest area under the learning curve, mean over settings and seeds.
    """
    from policygrain.results import StudyResults

    from .ranges import choose_ranges, ranges_text

    check_out(arguments.out)
    choice = choose_ranges(StudyResults(arguments.results))
    print(ranges_text(choice))
    if arguments.out:
        atomic_json(arguments.out, choice)


if __name__ == "__main__":
    sys.exit(main())
