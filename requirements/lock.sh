#!/usr/bin/env bash
# Derive requirements/cpu.lock, requirements/gpu.lock and environment.yml from the pins in pyproject.toml (needs uv).
# CPU_WHEELS may name a folder or page with torch's CPU build; the lock itself says plain `torch==…`.
set -euo pipefail
cd "$(dirname "$0")/.."
lock() {
    uv pip compile pyproject.toml --extra study --extra slurm --extra "$1" --extra lora --extra trl --extra dev --python-version 3.11 --python-platform x86_64-unknown-linux-gnu \
        --no-header --quiet "${@:2}" | sed -e 's/^\(torch==[0-9.]*\)+cpu/\1/' -e '/^ *#/d' >"requirements/$1.lock"
}
lock cpu --find-links "${CPU_WHEELS:-https://download.pytorch.org/whl/cpu/torch/}"
lock gpu

# Snakemake makes its conda environments from a copy of environment.yml, which finds no other file.
sed -i '/^      - /d' environment.yml
sed 's/^/      - /' requirements/gpu.lock >>environment.yml
