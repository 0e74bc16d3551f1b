"""verl's real registry, losses and `ppo_loss`, in an environment of its own (`make test-peers`)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from policygrain import TokenBatch, method
from policygrain.objective import Sampler, method_names

pytest.importorskip("verl", reason="verl is not installed here; `make test-peers` has an environment with it")

import tensordict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config.actor import ActorConfig
from verl.workers.utils.losses import ppo_loss

from policygrain.integrations.options import UnsupportedOption
from policygrain.integrations.verl import PREFIX, policy_loss, with_entropies
from policygrain.objective.loss import rollout_weights

from ..support.batches import SIXTEEN, loss_and_gradient, random_fields
from ..support.trainer_losses import verl_config, verl_step
from . import REFUSED


def config_of(
    mode: str, aggregation: str = "token-mean", low: float = 0.2, high: float = 0.2, **more: Any
) -> ActorConfig:
    return verl_config(mode, loss_agg_mode=aggregation, clip_ratio_low=low, clip_ratio_high=high, **more)


def python(code: str, **variables: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def test_every_method_is_a_policy_loss_and_says_so():
    for name in method_names():
        assert callable(get_policy_loss_fn(PREFIX + name))
    code = "import logging; logging.basicConfig(level=logging.INFO); import verl"
    said = python(code).stderr
    assert "PolicyGrain: registered" in said and "policygrain.tepo," in said


# verl's policy loss, its configuration, and changes of the preset: with verl's aggregation and clip, and a cap on the
# ratio that binds nowhere. verl's DPPO is a weighted likelihood: the gradient of r Â, and another value.
PEERS = yaml.safe_load(Path(__file__).with_name("verl_peers.yaml").read_text())
OF_MICRO_BATCHES = ("gmpo", "clip_cov", "kl_cov")  # of which verl takes statistics
OTHER_VALUE = ("dppo_tv", "dppo_kl", "clip_cov", "kl_cov")  # verl drops what is detached


@pytest.mark.parametrize(("micro", "ranks"), [(1, 1), (2, 1), (2, 2), (4, 4)])
@pytest.mark.parametrize("name", PEERS)
def test_loss_and_gradient_are_those_of_verl(name, micro, ranks):
    """Of the method, and of the preset as verl's policy loss."""
    if name in OF_MICRO_BATCHES and micro * ranks > 1:
        return
    mode, config, changes = PEERS[name]
    ours = method(name, **changes)
    fields = random_fields(SIXTEEN, 3, 1.5 if name == "tepo_v1" else 0.5)
    fields |= {key: fields[key].clamp(max=-0.01) for key in ("log_probs", "old_log_probs")}  # of probabilities
    expected = verl_step(mode, config_of(mode, **config), fields, micro, ranks)
    found = [loss_and_gradient(ours, fields)]
    if not changes:
        found.append(verl_step(PREFIX + name, config_of(PREFIX + name), fields, micro, ranks))
    for loss, gradient in found:
        assert name in OTHER_VALUE or float(loss) == pytest.approx(expected[0], rel=1e-6)
        torch.testing.assert_close(gradient, expected[1], rtol=1e-6, atol=1e-9)
    assert name in ("sapo", "kl_cov") or ours.loss(TokenBatch(**fields)).metrics["clip_fraction_high"] > 0


@pytest.mark.parametrize("name", ["mpo", "turn_ratio", "prefix_is", "reinforce", "mpo_joint", "gmpo", "luspo", "vespo"])
def test_methods_that_verl_lacks_do_not_depend_on_the_division(name):
    fields = random_fields(SIXTEEN, 4, 0.3)
    whole = verl_step(PREFIX + name, config_of(PREFIX + name), fields, 1, 1)
    for micro, ranks in ((2, 1), (4, 1), (2, 2), (1, 4), (4, 4)):
        found = verl_step(PREFIX + name, config_of(PREFIX + name), fields, micro, ranks)
        assert found[0] == pytest.approx(whole[0], rel=1e-12)
        torch.testing.assert_close(found[1], whole[1], rtol=1e-12, atol=1e-14)


def data_of(fields: dict[str, Any], with_old_entropy: bool = True) -> tuple[dict[str, Any], Any]:
    """What verl's engine hands to `ppo_loss`: jagged outputs of the model, and the mini-batch."""
    mask = fields["mask"].bool()
    lengths = mask.sum(1).tolist()

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def response_only(x: torch.Tensor) -> torch.Tensor:
        return jagged([row[keep] for row, keep in zip(x, mask, strict=True)])

    def whole(x: torch.Tensor) -> torch.Tensor:
        """Of prompt and response, shifted by one as a model's outputs are: position t predicts t + 1."""
        zero = x.new_zeros(1)
        rows = [torch.cat([zero, row[keep], zero]) for row, keep in zip(x, mask, strict=True)]
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
        return torch.nested.nested_tensor_from_jagged(torch.cat(rows), ends)

    content = {
        "prompts": jagged([torch.ones(2, dtype=torch.long) for _ in lengths]),
        "responses": jagged([torch.ones(n, dtype=torch.long) for n in lengths]),
        "response_mask": response_only(mask.double()),
        "old_log_probs": response_only(fields["old_log_probs"]),
        "advantages": response_only(fields["advantages"].unsqueeze(1).expand_as(mask)),
    } | ({"entropy": response_only(fields["old_entropy"])} if with_old_entropy else {})
    data = tensordict.TensorDict(content, batch_size=[len(lengths)])
    for key, value in {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(lengths)}.items():
        data.set_non_tensor(key, value)
    return {"log_probs": whole(fields["log_probs"]), "entropy": whole(fields["entropy"])}, data


@pytest.mark.filterwarnings("ignore:tepo:UserWarning")
def test_tepos_mask_goes_by_covariance_or_is_measured_with_the_wrapper(caplog):
    fields = random_fields(SIXTEEN, 6, 0.3)
    output, data = data_of(fields)
    config = config_of("policygrain.tepo", calculate_entropy=True)
    by_covariance, metrics = ppo_loss(config, output, data)
    assert metrics["policygrain/mask_signal_covariance"].values == [1.0]
    assert metrics["policygrain/micro_batch_statistics"].values == [1.0]
    assert "with_entropies" in caplog.text
    measured, metrics = with_entropies(ppo_loss)(config, output, data)
    assert "policygrain/mask_signal_covariance" not in metrics
    assert float(measured) == pytest.approx(float(loss_and_gradient("tepo", fields)[0]), rel=1e-12)
    without = {key: value for key, value in fields.items() if "entropy" not in key}
    assert float(by_covariance) == pytest.approx(float(loss_and_gradient("tepo", without)[0]), rel=1e-12)
    assert float(measured) != pytest.approx(float(by_covariance), rel=1e-3)
    for output_, data_, says in (
        ({"log_probs": output["log_probs"]}, data, "calculate_entropy=true"),
        (output, data_of(fields, with_old_entropy=False)[1], "the field `entropy`"),
    ):
        with pytest.raises(UnsupportedOption, match=says):
            with_entropies(ppo_loss)(config, output_, data_)


@pytest.mark.parametrize("outside", ["truncate", "mask"])
@pytest.mark.parametrize("grain", ["token", "sequence"])
def test_rollout_correction_has_verls_weights(grain, outside):
    """verl zeroes padding, where the weights here are 1 and mean nothing; "low_upper" masks outside of both."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    fields = random_fields(SIXTEEN, 7, 0.4)
    old, mask = fields["old_log_probs"], fields["mask"]
    engine = fields["log_probs"]
    threshold = "0.5_1.5" if outside == "mask" else 1.5
    theirs, _ = compute_rollout_correction_weights(old - engine, mask.double(), grain, threshold)
    floor = 0.5 if outside == "mask" else 0.0
    sampler = Sampler(correction_cap=1.5, correction_floor=floor, correction_grain=grain, correction_outside=outside)
    ours = rollout_weights(old, engine, mask, sampler)
    torch.testing.assert_close(torch.where(mask, ours, 0.0), theirs, rtol=1e-12, atol=0)
    assert (ours[mask] == (0.0 if outside == "mask" else 1.5)).any()


@pytest.mark.parametrize(("name", "config", "says"), REFUSED["verl"])
def test_options_that_would_give_another_objective_are_refused(name, config, says):
    fields = random_fields([3, 2], 0)
    with pytest.raises(UnsupportedOption, match=says):
        verl_step(PREFIX + name, config_of(PREFIX + name, **config), fields, 1, 1)


def test_own_methods_come_from_a_file(tmp_path):
    file = tmp_path / "methods.yaml"
    file.write_text("narrow: {base: tepo, clip: {low: 0.003, high: 0.004}}\n")
    code = (
        "import verl; from verl.trainer.ppo.core_algos import get_policy_loss_fn as get\n"
        "print(get('policygrain.narrow').args[0].clip)"
    )
    assert "low=0.003, high=0.004" in python(code, POLICYGRAIN_METHODS=file).stdout
    file.write_text("narrow: {base: tpeo}\n")
    assert "'tepo'" in python("import verl", POLICYGRAIN_METHODS=file).stderr


def test_it_is_itself_the_step_where_verl_gives_no_totals():
    fields = random_fields([3, 2], 0, 0.3)
    advantages = fields["advantages"].unsqueeze(1).expand_as(fields["log_probs"])
    mask = fields["mask"].bool()
    loss, _ = policy_loss(method("gspo"), fields["old_log_probs"], fields["log_probs"], advantages, mask)
    assert float(loss) == pytest.approx(float(loss_and_gradient("gspo", fields)[0]), rel=1e-12)
