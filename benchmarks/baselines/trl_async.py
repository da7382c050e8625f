"""TRL's AsyncGRPOTrainer on one of areal's tasks, on the CPU.

As released it needs a GPU and vLLM. What is replaced here, and nothing else:
  1. the peak-FLOPS query, which asks CUDA, answers that it does not know;
  2. its flash-attention kernel becomes torch's own attention, one call per step over padded segments;
  3. the check that vLLM is installed passes, and messages are put through a template that changes nothing;
  4. weights go to `trl_server.py` as one safetensors file in memory, instead of to vLLM over NCCL.
"""

from __future__ import annotations

import contender

OPTIONS = contender.parse()

import requests  # noqa: E402  the number of threads is set first
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
import trl.experimental.async_grpo.async_grpo_trainer as trainers  # noqa: E402
import trl.experimental.async_grpo.async_rollout_worker as rollouts  # noqa: E402
import trl.experimental.async_grpo.packing as packing  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402

# At module level, because the rollout process that TRL starts imports this file too.
rollouts.is_vllm_available = lambda *_, **__: True
rollouts.parse_response = lambda tokenizer, ids, **_: {
    "role": "assistant",
    "content": tokenizer.decode(ids, skip_special_tokens=True),
}
trainers.get_peak_flops_per_device = lambda *_, **__: None


class TorchKernel:
    """The one function of the flash-attention package that TRL calls."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, ends_q, ends_k, max_q, max_k, softmax_scale=None, **_):  # type: ignore[no-untyped-def]
        """Pad segments into one batch; the last query of a segment sees all its keys, as in flash attention."""
        ends_q, ends_k = ends_q.long(), ends_k.long()
        num_q, num_k = ends_q.diff(), ends_k.diff()
        range_q, range_k = torch.arange(int(num_q.max())), torch.arange(int(num_k.max()))
        rows_q = (ends_q[:-1, None] + range_q).clamp(max=len(q) - 1)
        rows_k = (ends_k[:-1, None] + range_k).clamp(max=len(k) - 1)
        seen = range_k[None, None] <= (range_q[None, :, None] + (num_k - num_q)[:, None, None])
        seen &= range_k[None, None] < num_k[:, None, None]
        seen[:, :, 0] |= ~seen.any(-1)  # padding queries must see something
        queries, keys, values = q[rows_q].transpose(1, 2), k[rows_k].transpose(1, 2), v[rows_k].transpose(1, 2)
        repeat = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=seen[:, None], scale=softmax_scale)
        return out.transpose(1, 2)[range_q[None] < num_q[:, None]]


class FileTransfer:
    """Implements TRL's WeightTransferProtocol with a file and one HTTP call; the server never pauses."""

    def __init__(self, path: str) -> None:
        self._path = path

    def init_weight_transfer(self) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing: the server takes weights between two steps."""

    def send_weights(self, iterator) -> None:  # type: ignore[no-untyped-def]
        """Write the file and have it loaded."""
        save_file({name: tensor.detach().contiguous() for name, tensor in iterator}, self._path)
        requests.post(f"{OPTIONS.server}/update_weights", json={"path": self._path}).raise_for_status()

    def resume(self) -> None:
        """Do nothing."""

    def destroy(self) -> None:
        """Do nothing."""


class Watch(TrainerCallback):
    """Tells the clock about steps. Added last, so that the start of TRL's rollout process is not counted."""

    def __init__(self, clock: contender.TrainingTimer, evaluation) -> None:  # type: ignore[no-untyped-def]
        self._clock, self._evaluation = clock, evaluation

    def on_train_begin(self, *_, **__) -> None:  # type: ignore[no-untyped-def]
        """Start the clock."""
        self._clock.start()

    def on_log(self, args, state, control, logs=None, **__) -> None:  # type: ignore[no-untyped-def]
        """Keep the training reward."""
        if logs and "reward" in logs:
            self._clock.rewards.append(round(float(logs["reward"]), 4))

    def on_step_end(self, args, state, control, model=None, **__) -> None:  # type: ignore[no-untyped-def]
        """Note the step."""
        self._clock.step(state.global_step, lambda: self._evaluation(model))


def main() -> None:
    """Train, evaluate, write."""
    torch.set_num_threads(OPTIONS.threads)
    transformers.logging.set_verbosity_error()
    packing._flash_attn = lambda: TorchKernel
    tokenizer = AutoTokenizer.from_pretrained(OPTIONS.model)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.response_schema = {}
    # Evaluation needs the usual attention; the trainer's model has the packed one.
    judge = AutoModelForCausalLM.from_pretrained(OPTIONS.model, dtype=torch.float32)
    held = contender.read_rows(OPTIONS.held)

    def evaluation(model) -> float:  # type: ignore[no-untyped-def]
        judge.load_state_dict(model.state_dict(), strict=False)
        return contender.evaluate(judge, tokenizer, held, OPTIONS.max_new)

    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "number": number}
        for number, row in enumerate(contender.read_rows(OPTIONS.rows))
    ]
    config = trainers.AsyncGRPOConfig(
        **contender.settings(OPTIONS),
        token_budget=-1,
        vllm_server_base_url=OPTIONS.server,
        max_staleness=OPTIONS.staleness,
        weight_sync_steps=1,
    )
    clock = contender.TrainingTimer(OPTIONS)
    trainer = trainers.AsyncGRPOTrainer(
        model=OPTIONS.model,
        reward_funcs=contender.Reward(OPTIONS.rows),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        weight_transfer=FileTransfer(f"{OPTIONS.scratch}/weights.safetensors"),
    )
    trainer.add_callback(Watch(clock, evaluation))
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train()
    server = requests.get(f"{OPTIONS.server}/stats").json()
    final = evaluation(trainer.accelerator.unwrap_model(trainer.model))
    clock.write(final, server=server, trl=trl.__version__, torch=torch.__version__)


if __name__ == "__main__":
    main()
