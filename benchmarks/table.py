"""The results on the page, as the files in `results/` have them: `python benchmarks/table.py` looks, `--write` writes.

Knows: which figure stands in which row, in which words.
Does not know: how it was measured, or what it is to reach; that is in `goals`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from goals import Goal, goal_of
from quiet import LIMIT

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs/benchmarks.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
HEAD = """| benchmark | ratio | least to most | repeats | goal | | measured |
|---|---|---|---|---|---|---|"""
CASES = re.compile(r"(?P<size>tiny|small) (?P<engine>\w+):d(?P<ranks>\d+)")
"""The cases of `train_step` that decide."""
SIZES = {"tiny": "76k", "small": "4 million"}


@frozen
class Row:
    """One figure of a result: its own, or one of its details at the end of a path, which has no goal unless it says so.

    Example: Row("the same: `areal replay`", "reader_memory", ("ratios", "areal replay"), judged=True)
    """

    words: str
    name: str
    path: tuple[str, ...] = ()
    judged: bool = False


ROWS = (
    Row("packed step against padded", "packing"),
    Row("step against a bare loop, the worst train engine over data ranks", "train_step"),
    Row("weight sync, `disk` against safetensors save and load", "weight_sync_disk"),
    Row("weight sync, `shm` against one plain copy", "weight_sync_shm"),
    Row(
        "weight sync, `collective` over gloo and loopback, against gloo's own broadcasts",
        "weight_sync_collective",
    ),
    Row(
        "weight sync, `delta`: bytes of what changed at a learning rate of 1e-6 against whole tensors",
        "weight_sync_delta",
    ),
    Row(
        "[weights across hosts](#weights-across-hosts), 8 against 1, 200 Mbit/s each",
        "weights_across_hosts_fan_out",
    ),
    Row("the same: one plain TCP connection against 8 hosts", "weights_across_hosts_rate"),
    Row(
        "the same: 8 replicas, 4 on the trainer's host, against the 4 elsewhere alone",
        "weights_across_hosts_placement",
    ),
    Row("tokens/s through the `vllm` plugin against a bare client, equal bodies", "served_vllm"),
    Row("tokens/s through the `sglang` plugin against a bare client, equal bodies", "served_sglang"),
    Row("the least gain in held-out reward of any [preset](recipes/index.md), 20 steps", "algorithms"),
    Row("the least share of the way that any [kind](how-to/supervised.md) of run went", "kinds"),
    Row("the least held-out reward of a [conversation or a tool](how-to/multi-turn.md) with any engine", "agents"),
    *(
        Row(f"the same: {task}, `{engine}`", "agents", ("reached", name, engine, "last"), judged=True)
        for task, name in (("a conversation", "spell_again"), ("a tool", "sums"))
        for engine in ("reference", "vllm", "sglang")
    ),
    Row("tokens of a session found in the prefix cache of `vllm`, of those seen", "prefix_sharing_vllm"),
    Row("the same: `sglang`", "prefix_sharing_sglang"),
    Row(
        "processor time of an episode over 4 [rollout processes](how-to/rollout-processes.md) against 1",
        "rollout_processes",
    ),
    Row("the same against none", "rollout_processes", ("against_none",)),
    Row(
        "processor time of an episode, the worst of 1,000 to 100,000 in flight and of 1 to 512 replicas, against 1,000",
        "scale",
    ),
    Row(
        "bytes that the controller holds for each episode in flight, the worst of the same, against 4,096",
        "scale_bytes",
    ),
    Row("orchestration against `asyncio.gather`", "orchestration"),
    Row("the same with the engine in a worker and a reward in a process, on both sides", "orchestration_whole"),
    Row("processor time of the controller for an episode of a real run, against 250 microseconds", "controller"),
    Row("an episode against a calibrated step of asyncio (the guard)", "guard"),
    Row(
        "processor time of a run's steps, spread over the cores, against their wall-clock: task A",
        "processor_bound_spell",
    ),
    Row("the same: task B", "processor_bound_long_spell"),
    Row(
        "resident memory of the process that grew most, last fifth of 5,000 steps against the second",
        "memory",
    ),
    Row("longest stall of the event loop in steps on a million tokens, against 20 ms", "long_batch"),
    Row("mean staleness just in time against as early as possible, task A, bound 2, 100 steps", "freshness_spell"),
    Row("seconds of the same", "freshness_spell", ("seconds_ratio",)),
    Row(
        "peak memory of trainer and generator [by turns](how-to/one-gpu.md), against devices of their own",
        "shared_devices",
    ),
    Row("seconds of such a step, against one that overlaps", "shared_devices", ("step_ratio",)),
    Row("the same, against one that does not", "shared_devices", ("step_ratio_without_overlap",)),
    Row("resume point against 50 steps", "resume"),
    Row("the loss of the actor with everything started anew, against the fleet kept", "restart_reference"),
    Row("seconds of the quickstart's steps with every episode kept, against none", "episode_store"),
    Row("memory of the worst reader, ten times the steps against one time", "reader_memory"),
    Row("the same: the controller of `areal replay`", "reader_memory", ("ratios", "areal replay"), judged=True),
    Row(
        "the same: the controller of `areal train --resume`",
        "reader_memory",
        ("ratios", "areal train --resume"),
        judged=True,
    ),
    Row("`areal --help` against 0.3 s", "help"),
    Row("generator against transformers' `generate` on inputs sorted by length", "generation"),
    Row("RPC payload against a plain copy", "rpc"),
    Row(
        "bound max(generation, training), each with the machine for itself, against wall-clock, task B", "async_vs_sync"
    ),
    Row("time of TRL synchronous against areal, task B, 100 steps", "equal_steps_long_spell_sync"),
    Row("time of TRL asynchronous against areal, task B, 100 steps", "equal_steps_long_spell_async"),
    Row("time of TRL synchronous against areal, task A, 100 steps", "equal_steps_spell_sync"),
    Row("time of TRL asynchronous against areal, task A, 100 steps", "equal_steps_spell_async"),
    Row(
        "seconds until the held-out reward is 0.9, TRL synchronous against areal, task A",
        "time_to_reward_spell_sync",
    ),
    Row("the same: TRL asynchronous", "time_to_reward_spell_async"),
)
"""In the order of the page. Of a result whose file is not there yet, the row says so."""


def parts(row: Row, record: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row, and behind that of `train_step` one for each engine over data ranks. Any: json."""
    yield row
    if row.name == "train_step" and not row.path:
        for title in record["details"]["cases"]:
            if case := CASES.fullmatch(title):
                ranks = f"{case['ranks']} rank{'s' if case['ranks'] != '1' else ''}"
                words = f"the same: `{case['engine']}`, {SIZES[case['size']]} parameters, {ranks}"
                yield Row(words, "train_step", ("cases", title), judged=True)


def figure_of(row: Row, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return ratio, repeats and spread of a row, as far as the file has them; None if it has none. Any: json."""
    found: Any = record["details"] if row.path else record
    for name in row.path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return {"ratio": found} if isinstance(found, float | int) else found


def told(row: Row, record: Mapping[str, Any] | None) -> str:
    """Return the line of a row. Any: json."""
    goal = goal_of(row.name) if row.judged or not row.path else Goal(None)
    cells = [row.words, "", "", "", "" if goal.target is None else str(goal), "", "not yet"]
    figure = None if record is None else figure_of(row, record)
    if record is not None and figure is not None:
        spread, verdict = figure.get("spread"), goal.met(figure["ratio"])
        cells[1] = short(figure["ratio"])
        cells[2] = f"{short(spread[0])} to {short(spread[1])}" if spread else ""
        cells[3] = str(figure.get("repeats", ""))
        cells[5] = "" if verdict is None else "met" if verdict else "missed"
        cells[6] = measured(record)
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def short(ratio: float) -> str:
    """Return three digits that count."""
    return f"{ratio:#.3g}"


def measured(record: Mapping[str, Any]) -> str:
    """Return the day, the processor and whether other work went on. Any: json."""
    processor = record["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor")
    return ", ".join([record["date"][:10], processor, *(["busy"] if was_busy(record) else [])])


def was_busy(record: Mapping[str, Any]) -> bool:
    """Tell whether other work went on; of before anybody looked, the load that was left at the end tells. Any: json.

    A run has three processes that compute, so it leaves a load of some three by itself.
    """
    machine = record["machine"]
    seen = [cores for when in ("start", "end") if (cores := machine.get(f"busy_cores_at_{when}")) is not None]
    if not seen:
        return "--busy" in record["command"] or bool(machine["load"] > machine["cores"] + 1)
    return "--busy" in record["command"] or max(seen) > LIMIT


def table(results: Path, rows: Sequence[Row] = ROWS) -> str:
    """Return the whole table of the results in a folder."""
    lines = [HEAD]
    for row in rows:
        file = results / f"{row.name}.json"
        record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        lines += [told(each, record) for each in (parts(row, record) if record else [row])]
    return "\n".join(lines)


def with_table(page: str, made: str) -> str:
    """Return a page with another table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no {BEGIN} ... {END}: the results stand between them")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> int:
    """Compare the page with the results, or write them into it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    page = options.page.read_text(encoding="utf-8")
    made = with_table(page, table(options.results))
    if options.write:
        options.page.write_text(made, encoding="utf-8")
    elif made != page:
        print(f"{options.page} is not what {options.results} has: python benchmarks/table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
