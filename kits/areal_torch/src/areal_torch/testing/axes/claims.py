"""What holds for every engine with several axes, on one, two and four real ranks: a plugin's test class inherits it.

    class TestMine(HeldToAPlainLoop):
        script = Path(__file__).with_name("ranks.py")      # calls `program.main`
        refusals = {"heads": ("LayoutError", "t2 does not divide 3"), ...}

Knows: what `program` writes, and what `oracle` found.
Does not know: engines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_core.weights.tensors import fingerprint
from areal_torch.testing.axes.beside import LEFT_S
from areal_torch.testing.axes.oracle import Oracle, full_batch
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.ranks import run_ranks

Results = dict[str, Any]  # Any: json

WORLDS = (4, 2, 1)
"""In this order, if a class names no other: later ones resume what earlier ones saved."""
FAILED_ON_ONE = {
    "too_long": ("BatchError", "sequence 0 has 32 tokens, the limit is 20"),
    "wrong_head": ("CapabilityError", "cannot give values"),
    "spoiled": ("FingerprintMismatch", "9 of 24 tensors of version 2"),
    "disk": ("StorageError", "/proc/nowhere/model"),
}
REFUSED = {
    "routes": ("BatchError", "names an expert that does not exist"),
    "no_experts": ("BatchError", "the model has no experts"),
    "no_model": ("ModelError", "does not exist"),
}


def make_models(path: Path) -> None:
    """Write the models every world trains, and some that must be refused. 66 rows make unequal shards, and 65 parts."""
    make_tiny_model(path / "qwen3", vocab_size=66)
    make_tiny_model(path / "qwen2", kind="qwen2", vocab_size=66, tied=False, layers=4, kv_heads=4)
    make_tiny_model(path / "llama", kind="llama", vocab_size=66, tied=False)
    make_tiny_model(path / "moe", kind="qwen3_moe", vocab_size=66, tied=False)
    make_tiny_model(path / "odd", vocab_size=65)
    make_tiny_model(path / "tied", layers=4, vocab_size=65)
    make_tiny_model(path / "odd_heads", heads=3, kv_heads=3, hidden=48, layers=3)
    change(path, "moe", "odd_experts", num_local_experts=3, num_experts=3)
    change(path, "llama", "unknown", model_type="granite", architectures=["GraniteForCausalLM"])
    change(path, "llama", "mixed", vocab_size=64)
    change(path, "llama", "torn")
    weights = path / "torn" / "model.safetensors"
    save_file({name: each for name, each in load_file(weights).items() if ".1." not in name}, weights)


def change(path: Path, source: str, name: str, **changes: Any) -> None:
    """Copy a model folder, with other entries in its config.json. Any: json."""
    shutil.copytree(path / source, path / name)
    config = json.loads((path / name / "config.json").read_text())
    (path / name / "config.json").write_text(json.dumps({**config, **changes}))


def results(folder: Path, world: int, rank: int) -> Results:
    """Return all that a rank has told."""
    found: Results = json.loads((folder / f"results-{world}-{rank}.json").read_text())
    return found


def cases(folder: Path, world: int, rank: int = 0) -> Results:
    """Return what a rank has told of the cases, by name."""
    found: Results = results(folder, world, rank)["cases"]
    return found


class HeldToAPlainLoop:
    """Claims of every such engine. All ranks run once per class; slow."""

    script: ClassVar[Path]
    refusals: ClassVar[Mapping[str, tuple[str, str]]]
    """Name of a start that cannot be -> error and words, beside REFUSED."""
    trained: ClassVar[tuple[str, ...]] = ("qwen3", "qwen2", "llama", "moe", "odd")
    """The models of the engine's cases."""
    order: ClassVar[tuple[int, ...]] = WORLDS
    """In which worlds run."""

    @classmethod
    def make_models(cls, path: Path) -> None:
        """Write the model folders; an engine adds its own."""
        make_models(path)

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Run all cases on every world."""
        path = tmp_path_factory.mktemp("axes")
        cls.make_models(path)
        for world in cls.order:
            run_ranks(cls.script, path, world, limit_s=1500)
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def oracles(cls, folder: Path) -> dict[str, Oracle]:
        """Run the plain loop on every model, and on drawn routes."""
        found = {model: Oracle.of(folder / model) for model in cls.trained}
        return {**found, "routed": Oracle.of(folder / "moe", recorded=True)}

    @pytest.mark.parametrize("world", WORLDS)
    def test_scores_are_those_of_transformers(self, world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
        """Log-probs and entropy of every token, on every rank, in every layout."""
        ends = full_batch().cu_seqlens.tolist()
        for rank in range(world):
            for name, case in cases(folder, world, rank).items():
                index = [token for row in case["rows"] for token in range(ends[row], ends[row + 1])]
                for column in ("logprobs", "entropy"):
                    expected = torch.tensor(getattr(oracles[case["oracle"]], column))[index]
                    told = f"{column} of {name} on {rank}"
                    torch.testing.assert_close(torch.tensor(case[column]), expected, rtol=1e-4, atol=1e-5, msg=told)

    @pytest.mark.parametrize("world", WORLDS)
    def test_scores_after_training_are_those_of_the_plain_loop(
        self, world: int, folder: Path, oracles: dict[str, Oracle]
    ) -> None:
        """Nothing that was gathered or kept for the steps is scored with; recorded routes come back as they were."""
        ends = full_batch().cu_seqlens.tolist()
        for rank in range(world):
            for name, case in cases(folder, world, rank).items():
                index = [token for row in case["rows"] for token in range(ends[row], ends[row + 1])]
                expected = torch.tensor(oracles[case["oracle"]].after)[index]
                torch.testing.assert_close(
                    torch.tensor(case["after"]), expected, rtol=1e-3, atol=1e-3, msg=f"{name} on {rank}"
                )
                assert case["kept"], name

    @pytest.mark.parametrize("world", WORLDS)
    def test_steps_are_those_of_a_plain_loop(self, world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
        """Law 6: loss and gradient norm do not depend on layout, schedule, recomputation or micro-batches."""
        for name, case in cases(folder, world).items():
            pairs = zip(oracles[case["oracle"]].steps, case["steps"], strict=True)
            for number, ((loss, norm), step) in enumerate(pairs):
                assert step["loss"] == pytest.approx(loss, rel=3e-5, abs=1e-6), f"{name}, step {number}"
                assert step["grad_norm"] == pytest.approx(norm, rel=1e-4), f"{name}, step {number}"
                assert step["stepped"]
                assert step["tokens"] == 64

    @pytest.mark.parametrize("world", WORLDS)
    def test_every_gradient_is_that_of_a_plain_loop(self, world: int, folder: Path, oracles: dict[str, Oracle]) -> None:
        """Norms of queries and keys under t, experts under e, tied embeddings under p, stages that take turns."""
        for name, case in cases(folder, world).items():
            gradients = load_file(folder / f"gradients-{world}-{name.replace('/', '-')}.safetensors")
            expected = oracles[case["oracle"]].gradients
            assert gradients.keys() == expected.keys(), name
            for tensor, gradient in gradients.items():
                scale = float(expected[tensor].abs().max())
                gap = float((gradient - expected[tensor]).abs().max())
                assert gap <= 1e-4 * scale, f"{name}: {tensor} differs by {gap:.3g} of {scale:.3g}"

    @pytest.mark.parametrize("world", WORLDS)
    def test_export_is_a_model_folder_with_the_trained_weights(
        self, world: int, folder: Path, oracles: dict[str, Oracle]
    ) -> None:
        """from_pretrained reads what save_weights wrote, and finds the weights of the plain loop after three steps."""
        from transformers import AutoModelForCausalLM

        for name, case in cases(folder, world).items():
            path = folder / f"export-{world}-{name.replace('/', '-')}"
            weights = load_file(path / "model.safetensors")
            expected = oracles[case["oracle"]].weights
            assert weights.keys() == expected.keys(), name
            for tensor, value in expected.items():
                torch.testing.assert_close(weights[tensor], value, rtol=1e-3, atol=2e-4, msg=f"{tensor} of {name}")
            assert (path / "tokenizer_config.json").is_file()
        _, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert not list(folder.glob("*.partial"))

    @pytest.mark.parametrize("world", WORLDS)
    def test_weights_go_in_and_out_bit_for_bit(self, world: int, folder: Path) -> None:
        """What is sent before the first step are the tensors of the folder, whatever the layout, tied or not."""
        for name, case in cases(folder, world).items():
            file = load_file(folder / case["model"] / "model.safetensors")

            assert case["sent"] == {tensor: fingerprint(value) for tensor, value in file.items()}, name

    def test_every_rank_reports_the_same(self, folder: Path) -> None:
        """Reports are reduced: every rank says what rank 0 says, to the bit."""
        for world in WORLDS:
            first = cases(folder, world)
            for rank in range(1, world):
                for name, case in cases(folder, world, rank).items():
                    assert first[name]["steps"] == case["steps"], f"{name} on rank {rank}"

    @pytest.mark.parametrize("world", [2, 4])
    def test_ranks_that_hold_the_same_part_hold_the_same_bits(self, world: int, folder: Path) -> None:
        """After three steps: copies have not drifted apart."""
        for name, case in cases(folder, world).items():
            assert case["copies"], name

    @pytest.mark.parametrize("world", WORLDS)
    def test_training_that_is_moved_away_and_back_keeps_its_bits(self, world: int, folder: Path) -> None:
        """Every rank frees its parts of weights and moments, and nothing else changes; a call in between says so."""
        for rank in range(world):
            for name, found in results(folder, world, rank)["away"].items():
                assert found["equal"], name
                assert found["held"] > found["left"] == 0, name
                assert found["call"][0] == "TrainError" and "call onload first" in found["call"][1]

    def test_recorded_routes_are_others_than_the_routers_own(self, oracles: dict[str, Oracle]) -> None:
        """So the cases above would fail if a layout dropped them."""
        gap = (torch.tensor(oracles["routed"].logprobs) - torch.tensor(oracles["moe"].logprobs)).abs().max()

        assert float(gap) > 0.1

    def test_value_heads_train_alike_and_are_saved(self, folder: Path) -> None:
        """A critic starts at zero, learns the same in every layout, and is a folder transformers knows."""
        from transformers import AutoModelForTokenClassification

        expected = results(folder, 1, 0)["value_head"]["d1"]
        for world in (2, 4):
            for layout, steps in results(folder, world, 0)["value_head"].items():
                for first, second in zip(expected, steps, strict=True):
                    assert second["loss"] == pytest.approx(first["loss"], rel=1e-4), layout
                    assert second["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-4), layout
                model, info = AutoModelForTokenClassification.from_pretrained(
                    folder / f"critic-{world}-{layout}", output_loading_info=True
                )
                assert not info["missing_keys"]
                assert float(model.score.weight.detach().abs().max()) > 0.0

    def test_bfloat16_keeps_float32_masters(self, folder: Path) -> None:
        """The loss is close to float32's but not equal; moments are float32."""
        exact = cases(folder, 1)["qwen3/d1"]["steps"][0]["loss"]
        for world in WORLDS:
            halves = results(folder, world, 0)["half_precision"]
            assert halves.pop("dtypes") == ["torch.float32"]
            for layout, half in halves.items():
                assert half["loss"] != exact
                assert half["loss"] == pytest.approx(exact, abs=0.05), layout

    @pytest.mark.parametrize("world", [2, 4])
    def test_resume_is_exact(self, world: int, folder: Path) -> None:
        """After loading, the next step and the weights after it are the same bits, and the version is back.

        The suite checks it on one rank, and on two without experts.
        """
        for rank in range(world):
            for name, case in results(folder, world, rank)["resume"].items():
                assert case["expected"] == case["actual"], name
                assert case["same_weights"], name
                assert case["version"] == 7, name
                assert case["other_model"][0] == "CheckpointError", name
                assert case["unchanged"], name

    @pytest.mark.parametrize("world", WORLDS)
    def test_a_state_of_one_layout_resumes_in_another(
        self, world: int, folder: Path, oracles: dict[str, Oracle]
    ) -> None:
        """Weights are the same bits; moments came along: the next steps are the plain loop's second and third."""
        for name, found in results(folder, world, 0)["reshard"].items():
            saver, model, layout = name.partition(" ")[0].split("-")
            expected = oracles[model].steps[1:]
            assert found["sent"] == cases(folder, int(saver))[f"{model}/{layout}"]["saved"], name
            for (loss, norm), step in zip(expected, found["steps"], strict=True):
                assert step["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5), name
                assert step["grad_norm"] == pytest.approx(norm, rel=1e-4), name

    @pytest.mark.parametrize("case", FAILED_ON_ONE)
    def test_an_error_on_one_rank_is_an_error_on_all(self, case: str, folder: Path) -> None:
        """The failing rank's reason reaches every rank, before anyone waits in a collective."""
        kind, says = FAILED_ON_ONE[case]
        for world in WORLDS:
            for rank in range(world):
                name, text = results(folder, world, rank)["refusals"][case]

                assert name == kind
                assert says in text

    @pytest.mark.parametrize("world", [2, 4])
    def test_a_rank_that_raises_alone_keeps_nobody_beyond_the_timeout(self, world: int, folder: Path) -> None:
        """In the middle of a step, whichever axis the others wait on: every group gives up when the run says so."""
        for rank in range(world):
            for layout, found in results(folder, world, rank)["left"].items():
                assert found["raises"] == (found["error"] == "BatchError"), f"{layout} on rank {rank}: {found}"
                assert found["error"] and found["seconds"] < 3 * LEFT_S, f"{layout} on rank {rank}: {found}"

    def test_what_cannot_be_is_refused_on_every_rank(self, folder: Path) -> None:
        """Before anything loads, with what does not fit and what would."""
        for rank in range(2):
            told = results(folder, 2, rank)["refusals"]
            for case, (kind, says) in {**REFUSED, **self.refusals}.items():
                name, text = told[case]

                assert name == kind, f"{case}: {text}"
                assert says in text, case
        starts = told.keys() - FAILED_ON_ONE.keys() - {"nan", "unchanged"}
        assert starts == REFUSED.keys() | self.refusals.keys(), "every start that was tried is judged"

    def test_refused_calls_change_nothing(self, folder: Path) -> None:
        """After all refusals weights are the same bits."""
        for world in WORLDS:
            assert results(folder, world, 0)["refusals"]["unchanged"]

    def test_a_frozen_role_scores_and_refuses_to_train(self, folder: Path) -> None:
        """Shards add up to the whole batch's log-probs and entropy; train_step says the role has no optimizer."""
        (whole,) = results(folder, 1, 0)["frozen_role"].values()
        ranks = [results(folder, 4, rank)["frozen_role"] for rank in range(4)]
        for layout in ranks[0]:
            shards = {told[layout]["data_rank"]: told[layout]["sums"] for told in ranks}
            for told in ranks:
                assert told[layout]["sums"] == shards[told[layout]["data_rank"]], layout
                assert told[layout]["train"][0] == "TrainError"

            assert [sum(column) for column in zip(*shards.values(), strict=True)] == pytest.approx(whole["sums"], 1e-5)
