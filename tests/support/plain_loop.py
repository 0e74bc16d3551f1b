"""A trainer without any package for training, as a user may have one: REINFORCE with a group baseline."""

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
for name in ("model", "baseline", "train", "validation", "out"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
torch.manual_seed(args.seed)
tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(args.model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
problems, held_out = (list(map(json.loads, Path(p).read_text().splitlines())) for p in (args.train, args.validation))


def sample(rows, n=1):
    """Token ids of prompts and responses, the mask of the responses, and rewards."""
    prompts = tokenizer([row["problem"] + "\n" for row in rows], return_tensors="pt", padding=True)
    ids = model.generate(**prompts, do_sample=True, max_new_tokens=48, num_return_sequences=n)
    width = prompts["input_ids"].shape[1]
    texts = tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)
    golds = [row["answer"] for row in rows for _ in range(n)]
    rewards = torch.tensor([float(f"\\boxed{{{gold}}}" in text) for gold, text in zip(golds, texts, strict=True)])
    return ids, width, rewards


with open(Path(args.out) / "log.csv", "w") as log:
    print("step,validation,reward", file=log, flush=True)
    for step in range(args.steps + 1):
        with torch.no_grad():
            validation = sample(held_out)[2].mean().item()
        if step == args.steps:
            print(f"{step},{validation},", file=log)
            break
        with torch.no_grad():
            ids, width, rewards = sample(random.Random(f"{args.seed} {step}").sample(problems, 4), 4)
        print(f"{step},{validation},{rewards.mean()}", file=log, flush=True)
        groups = rewards.view(-1, 4)
        baseline = groups.mean(1, keepdim=True) if args.baseline == "group" else 0.5
        advantages = (groups - baseline).view(-1, 1)
        mask = ids[:, width:] != tokenizer.pad_token_id
        logits = model(ids, attention_mask=ids != tokenizer.pad_token_id).logits[:, width - 1 : -1]
        chosen = logits.log_softmax(-1).gather(-1, ids[:, width:, None])[..., 0]
        loss = -(chosen * advantages * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model.save_pretrained(Path(args.out) / "final")
tokenizer.save_pretrained(Path(args.out) / "final")
