"""verl 0.9.1 on a CPU: a platform `cpu`, and rollouts by the engine of transformers. verl itself has neither.

verl imports this module in each of its processes (`ENVIRONMENT` in verl_on_cpu.py).
"""

import asyncio
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _Device(types.ModuleType):
    """Replacement for `torch.cuda`: `torch.cpu`, with functions that do nothing where it has none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        values = {"get_device_name": "CPU", "mem_get_info": (0, 0)}
        return getattr(torch.cpu, name, lambda *_, **__: values.get(name, 0))


@PlatformRegistry.register(platform="cpu")
class _PlatformCPU(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = _Device("verl_cpu_device")

    def is_available(self) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"  # Ray's number of GPUs is ray_kwargs.ray_init.num_gpus

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = _nothing
    empty_cache = profiler_start = profiler_stop = cudart = _nothing


class _Server:
    """A rollout server: a Ray actor with the engine of transformers. Requests within 0.2 seconds are one batch."""

    def __init__(self, model: str, limit: int) -> None:
        from policygrain.model.loading import load_model
        from policygrain.model.torch_engine import TorchEngine

        torch.set_num_threads(1)
        self.model, tokenizer = load_model(model)
        self.engine = TorchEngine(self.model.eval(), tokenizer.eos_token_id, tokenizer.pad_token_id)
        self.limit = limit
        self.global_steps: int | None = None
        self.waiting: list[tuple[Any, asyncio.Future]] = []

    async def generate(self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        from policygrain.model.engine import Request

        ids = [int(i) for i in prompt_ids]
        limit = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self.limit
        request = Request(ids, sampling_params["seed"], limit, sampling_params.get("temperature", 1.0))
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(0.2, self._flush)
        response = await future
        return TokenOutput(
            token_ids=response.ids,
            log_probs=response.log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    def _flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        try:
            responses = self.engine.generate([request for request, _ in waiting])
        except Exception as error:  # verl waits for every future
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), response in zip(waiting, responses, strict=True):
            future.set_result(response)

    async def load(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        assert not self.model.load_state_dict(weights, strict=False).unexpected_keys
        self.global_steps = global_steps

    async def nothing(self, *_: Any, **__: Any) -> None: ...

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = resume_generation = nothing
    start_profile = stop_profile = wait_for_requests_to_drain = abort_all_requests = nothing


def _replica() -> type:
    import ray
    from verl.workers.rollout.replica import RolloutReplica

    class Replica(RolloutReplica):
        async def launch_servers(self) -> None:
            path = self.model_config.path if hasattr(self.model_config, "path") else self.model_config["path"]
            options = {"name": f"transformers_{self.replica_rank}", "num_cpus": 0, "max_concurrency": 1000}
            server = ray.remote(_Server).options(**options).remote(path, self.config.response_length)
            self.servers, self._server_handle = [server], server
            self._server_address = f"transformers-{self.replica_rank}:0"

    return Replica


def _adapter() -> type:
    import ray
    from verl.workers.rollout.base import BaseRollout

    class ServerAdapter(BaseRollout):
        async def resume(self, tags: list[str]) -> None: ...

        async def release(self) -> None: ...

        async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
            loaded = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
            server = ray.get_actor(f"transformers_{os.environ['RANK']}")
            await server.load.remote(loaded, global_steps)

    return ServerAdapter


def __getattr__(name: str) -> Any:
    if name == "ServerAdapter":
        return _adapter()
    raise AttributeError(name)


def _register() -> None:
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("transformers", _replica)
    base._ROLLOUT_REGISTRY[("transformers", "async")] = f"{__name__}.ServerAdapter"
    # verl joins `cpu:gloo` and `DEVICE:BACKEND`, here `cpu:gloo`, and torch refuses the same device twice.
    init = dist.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *arguments, **named)

    dist.init_process_group = init_process_group


_register()
