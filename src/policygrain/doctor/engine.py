"""Whether vLLM starts on this machine."""

from __future__ import annotations

import tempfile


def sample_one_token() -> None:
    """Start vLLM with a tiny model and sample a token. Raises whatever vLLM raises if it does not start."""
    from ..model import tiny
    from ..rollout.engine import Request
    from ..rollout.open import check_vllm_runs_here
    from ..rollout.vllm_engine import VllmEngine
    from ..study.schema import TinyModel

    check_vllm_runs_here()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tiny.character_tokenizer()
        tiny.build(TinyModel(), tokenizer, 0).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        VllmEngine(folder, kv_gib=0.1).generate([Request([3, 4, 5], 0, 1)])
