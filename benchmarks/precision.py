"""What float32 weights are worth whose passes were in bfloat16 while they were trained, from a checkpoint of a run.

Log-probabilities of responses that the bfloat16 policy sampled, by the same weights in bfloat16 and in float32 passes,
before training and at the checkpoint; and the accuracy of responses sampled in each precision.

    python benchmarks/precision.py results/smollm2/runs/grpo/seed1 [--problems 20] [--out benchmarks/precision.json]

The run needs a checkpoint: stop it before its end (Ctrl-C), or copy its `checkpoints` while it is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from common import parser_of, provenance, save
from policygrain.data.families import generate
from policygrain.data.prompts import PromptRenderer
from policygrain.grading import Item, NumericGrader
from policygrain.model.device import set_compute_dtype
from policygrain.model.engine import Request, Rollout
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.paths import RunFolder
from policygrain.provenance import seed_of
from policygrain.study import load_study
from policygrain.train.checkpoint import SAVED_TYPES

STUDY = Path(__file__).parents[1] / "lab/research/studies/smollm2.yaml"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLES, TOKENS, TEMPERATURE = 4, 32, 0.7


def log_probs(model: Any, requests: list[Request], responses: list[Rollout]) -> torch.Tensor:
    """Log-probabilities of all response tokens, one sequence at a time."""
    found = []
    with torch.inference_mode():
        for request, response in zip(requests, responses, strict=True):
            ids = torch.tensor([request.prompt_ids + response.ids])
            logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].float() / TEMPERATURE
            found.append(logits.log_softmax(-1).gather(1, torch.tensor(response.ids)[:, None]).squeeze(1))
    return torch.cat(found)


def measure(model: PreTrainedModel, tokenizer: Any, problems: int) -> dict[str, Any]:
    """Accuracy by precision, and the mean absolute difference of log-probabilities between them, in nats per token."""
    study = load_study(STUDY)
    renderer = PromptRenderer(tokenizer, study.prompt)
    tasks = [t for family in ("plain_sum", "word_problem") for t in generate(family, "test", problems, 0)]
    requests = [
        Request(renderer.ids(t.problem), seed_of("precision", i, j), TOKENS, TEMPERATURE)
        for i, t in enumerate(tasks)
        for j in range(SAMPLES)
    ]
    golds = [t.answer for t in tasks for _ in range(SAMPLES)]
    accuracy, sampled, held = {}, {}, {}
    for name, dtype in DTYPES.items():
        set_compute_dtype(model, dtype)
        engine = TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
        sampled[name], held[name] = engine.generate(requests), engine.model
        texts = [tokenizer.decode(r.ids, skip_special_tokens=True) for r in sampled[name]]
        with NumericGrader(study.extraction) as grader:
            accuracy[name] = sum(o == "correct" for o in grader.grade([*map(Item, golds, texts)])) / len(golds)
    difference = log_probs(held["float32"], requests, sampled["bfloat16"]) - log_probs(
        held["bfloat16"], requests, sampled["bfloat16"]
    )
    return {"accuracy": accuracy, "difference": difference.abs().mean().item(), "responses": len(golds)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that has a checkpoint")
    parser.add_argument("--problems", type=int, default=20, help="of each of the two kinds")
    parser.add_argument("--model", default=STUDY.parents[1] / "models" / "smollm2-135m-instruct", help="initial model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = max(RunFolder(arguments.run).checkpoints.glob("step*"))
    model, tokenizer = load_model(str(arguments.model))
    report = {
        **provenance(),
        "run": f"{arguments.run.parent.name}/{arguments.run.name}",
        "step": int(folder.name.removeprefix("step")),
        "before": measure(model, tokenizer, arguments.problems),
    }
    with torch.serialization.safe_globals(SAVED_TYPES):
        model.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["model"])
    report["after"] = measure(model, tokenizer, arguments.problems)
    print(report)
    save(report, arguments.out)


if __name__ == "__main__":
    main()
