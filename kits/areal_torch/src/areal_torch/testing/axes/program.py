"""What every rank of an engine with several axes runs, in one start: trained cases, and all that can go wrong.

Writes FOLDER/results-WORLD-RANK.json, and what rank 0 gathered of gradients and weights beside it; `claims` reads
them. One start, because importing torch on several ranks costs more than all cases together.

    main(PLAN)          # python ranks.py RANK WORLD FOLDER [BEGINNING-OF-A-NAME]

Knows: how a case is trained, and what is written of it.
Does not know: engines, or what is right.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.train import ROUTED_EXPERTS, Output
from areal_torch.testing.axes.beside import BESIDE
from areal_torch.testing.axes.plan import ROWS, Case, Plan, Results, Runner, copies, report, sent

SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})


def _whole_state(folder: Path, kind: str) -> dict[str, Tensor]:
    """Put every tensor of one kind together from the files of all ranks; what nobody wrote is nan."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("rank-*.safetensors")):
        handle: Any  # safetensors is not typed
        with safe_open(file, framework="pt") as handle:
            for name, (offset, shape) in json.loads(handle.metadata()["boxes"]).items():
                if name.startswith(f"{kind}/"):
                    part = handle.get_tensor(name)
                    whole = found.setdefault(name.removeprefix(f"{kind}/"), torch.full(shape, math.nan))
                    whole[tuple(slice(at, at + size) for at, size in zip(offset, part.shape, strict=True))] = part
    return found


def trained(run: Runner, name: str, case: Case) -> Results:
    """Score, make a step, keep its gradient as the first moment shows it, make two more, score again, export."""
    key = name.replace("/", "-")
    state = run.folder / f"state-{run.world}-{key}"
    engine = run.engine(case.layout, case.options, model=case.model, **case.spec)
    out: Results = {"model": case.model, "oracle": "routed" if case.routed else case.model}
    out["sent"] = sent(engine, run.rank)
    batch = run.shard(recorded=case.routed)
    scored = engine.forward(batch, SCORES)
    out["logprobs"], out["entropy"] = (scored.tokens[column].tolist() for column in ("logprobs", "entropy"))
    out["kept"] = not case.routed or torch.equal(scored.tokens[ROUTED_EXPERTS], batch.tokens[ROUTED_EXPERTS])
    out["rows"], out["place"] = ROWS[run.layout.get("d", 1)][run.place["d"]], run.place
    out |= run.plan.note(engine)
    out["steps"] = [report(engine, batch)]
    engine.save_state(state)
    if run.rank == 0:
        scale = max(1.0, out["steps"][0]["grad_norm"]) / 0.1  # clipped to 1, and beta is 0.9
        moments = _whole_state(state, "exp_avg").items()
        parts = [run.plan.split(engine, parameter, moment * scale) for parameter, moment in moments]
        gradients = {tensor: value.contiguous() for part in parts for tensor, value in part.items()}
        save_file(gradients, run.folder / f"gradients-{run.world}-{key}.safetensors")
    if any(state.name == f"state-{source}" for others in run.plan.reshards.values() for source, _, _ in others):
        out["saved"] = sent(engine, run.rank)
    out["steps"] += [report(engine, batch) for _ in range(2)]
    out["copies"], out["after"] = copies(engine), engine.forward(batch, SCORES).tokens["logprobs"].tolist()
    engine.save_weights(run.folder / f"export-{run.world}-{key}")
    engine.close()
    return out


def _logged(name: str, action: Callable[[], Results]) -> Results:
    """Run one of them, and leave in the rank's log how long it took."""
    began = time.perf_counter()
    out = action()
    print(f"{name} {time.perf_counter() - began:.1f} s", flush=True)  # noqa: T201
    return out


def main(plan: Plan) -> None:
    """Run everything, or with a fourth argument what its name begins with; end the process. The log tells how long."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="The .grad attribute")  # Dynamo, of what FSDP gathered
    torch.set_num_threads(1)
    run = Runner(plan, rank, world, folder)
    results: Results = {"cases": {}}
    for name, case in plan.cases[world].items():
        if name.startswith(only):
            results["cases"][name] = _logged(name, partial(trained, run, name, case))
    for action in (*BESIDE, *plan.others):
        if action.__name__.startswith(only):
            results[action.__name__] = _logged(action.__name__, partial(action, run))
    (folder / f"results-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)
