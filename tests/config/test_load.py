"""Configuration files: every mistake is named with its path, secrets never leave."""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
import pytest
import yaml
from attrs import frozen
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from areal_core.config.load import dump_config, load_config
from areal_core.config.schema import DataConfig, RunConfig, StalenessPolicy
from areal_core.contract.errors import ConfigError, UnknownKey, WrongType
from areal_core.plugins.redact import redact
from areal_core.plugins.structure import structure, unstructure


def test_overrides_win_over_the_file_and_the_file_over_the_base(tmp_path: Path) -> None:
    """Base, file, overrides, in this order."""
    file = tmp_path / "run.yaml"
    file.write_text("steps: 5\nseed: 7\n")

    config = load_config(file, ["steps=6"], base={"steps": 4, "seed": 4, "name": "base"})

    assert (config.steps, config.seed, config.name) == (6, 7, "base")


def test_an_unknown_key_is_named_with_the_nearest_one() -> None:
    """The path and a suggestion are in the message."""
    with pytest.raises(UnknownKey, match=r"rollout\.max_stalenes'(.|\n)*did you mean 'rollout\.max_staleness'"):
        load_config(None, ["rollout.max_stalenes=3"])


def test_a_renamed_key_is_told_its_new_name() -> None:
    """Old files are corrected with one look at the error."""
    with pytest.raises(UnknownKey, match=r"rollout\.replace'(.|\n)*it is called 'rollout\.max_replacements' now"):
        load_config(None, ["rollout.replace=0"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=abc", "steps: got 'abc' "),
        ("steps=true", "steps: got True "),
        ("steps=1.5", "steps: got 1.5 "),
        ("actor=null", "actor: got None"),
        ("actor.optimizer.betas=[0.9]", r"actor\.optimizer\.betas"),
        ("loggers=[{nam: x}]", r"loggers\[0\]\.name is missing"),
        ("steps=0", "'steps' must be >= 1"),
        ("algorithm.advantages.gamma=2", "'gamma' must be <= 1"),
        ("algorithm.advantages.overlong.tokens=many", r"overlong\.tokens: got 'many' \(str\), wanted int"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(override: str, message: str) -> None:
    """Nothing is coerced: true is no number, 1.5 is no count."""
    with pytest.raises(WrongType, match=message):
        load_config(None, [override])


def test_a_wrong_choice_lists_the_allowed_ones() -> None:
    """Enumerations say what they take."""
    with pytest.raises(WrongType, match=r"allowed: wait, drop(.|\n)*did you mean 'wait'"):
        load_config(None, ["rollout.staleness_policy=wai"])


@pytest.mark.parametrize(
    ("override", "options"),
    [
        ("rollout.agent=my_agent.py:run", {"run": "my_agent.py:run"}),
        ("rollout.agent={command: [./mine, --fast]}", {"command": ["./mine", "--fast"]}),
    ],
)
def test_an_agent_is_the_workflow_agent(override: str, options: object, tmp_path: Path) -> None:
    """Said by name or by options; what is written down reads back as the same run."""
    config = load_config(None, [override])
    (tmp_path / "run.yaml").write_text(dump_config(config))

    assert (config.rollout.workflow.name, config.rollout.workflow.options) == ("agent", options)
    assert config.rollout.reward.name == "agent", "who else would tell it"
    assert load_config(tmp_path / "run.yaml") == config
    assert load_config(None, [override, "rollout.reward.name=judge"]).rollout.reward.name == "judge"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.agent=mine.py:run", "rollout.workflow.name=critique"], "rollout.agent beside rollout.workflow"),
        (["rollout.agent=3"], r"rollout\.agent: got 3 \(int\), wanted a text or keys"),
        (["rollout.agent=[mine.py:run]"], r"rollout\.agent: got \['mine.py:run'\] \(list\), wanted a text or keys"),
    ],
)
def test_an_agent_that_is_none_is_refused(overrides: list[str], message: str) -> None:
    """Beside another workflow, or as something else."""
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("1E-5", 1e-5), ("1E0", 1.0), (".5e-3", 5e-4), ("5.e-4", 5e-4), ("+1e-3", 1e-3)]
)
def test_a_number_may_have_an_exponent_without_a_point(text: str, value: float, tmp_path: Path) -> None:
    """As in YAML 1.2 and JSON, in a file, in an override, and in what a run writes down."""
    file, written = tmp_path / "run.yaml", tmp_path / "config.yaml"
    file.write_text(f"actor: {{optimizer: {{lr: {text}}}}}\ncritic:\n  optimizer:\n    lr: {text}")

    config = load_config(file, [f"reference.optimizer.lr={text}"])
    written.write_text(dump_config(config))

    assert config.critic is not None and config.reference is not None
    assert {role.optimizer.lr for role in (config.actor, config.critic, config.reference)} == {value}
    assert load_config(written) == config
    assert yaml.safe_load(written.read_text())["actor"]["optimizer"]["lr"] == value, "YAML 1.1 reads it too"


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", True), ("Off", False), ("2026-11-22", "2026-11-22"), ("n", "n"), ("'on'", "on"), ("'1e5'", "1e5")],
)
def test_words_and_dates_of_yaml_are_read_as_documented(text: str, value: object) -> None:
    """yes, no, on and off are true and false, a date is text (decision 0030); quoted all are text."""
    assert load_config(None, [f"data.options.value={text}"]).data.options["value"] == value


@given(st.dictionaries(st.text(min_size=1), st.text() | st.floats(allow_nan=False) | st.integers() | st.booleans()))
@example({"a": "1e5", "b": "yes", "c": "${steps}", "d": "\\\\${steps}", "e": "1:30", "f": "2026-11-22", "g": "0x1"})
@settings(max_examples=30)
def test_whatever_options_hold_reads_back_equal(options: dict[str, object]) -> None:
    """Texts that look like numbers, words or interpolations stay texts in config.yaml."""
    assume(options == redact(options))
    config = attrs.evolve(RunConfig(), data=DataConfig(options=options))

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(dump_config(config))
        file.flush()
        assert load_config(file.name) == config


def test_an_integer_is_fine_where_a_number_is_wanted() -> None:
    """`lr: 1` is 1.0."""
    assert isinstance(load_config(None, ["actor.optimizer.lr=1"]).actor.optimizer.lr, float)


def test_values_can_refer_to_each_other() -> None:
    """`${seed}` keeps its type."""
    config = load_config(None, ["seed=9", "data.options.seed=${seed}"])

    assert config.data.options["seed"] == 9


@pytest.mark.parametrize("override", ["steps", "=3", "--steps=3"])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    """The message shows the right form."""
    with pytest.raises(ConfigError, match=r"is not key=value"):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("content", "message"), [("a: [", "cannot be read as yaml"), ("- 1", "holds a list"), ("steps: ${nope}", "nope")]
)
def test_a_broken_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    """Not yaml, no mapping, an interpolation that leads nowhere."""
    file = tmp_path / "run.yaml"
    file.write_text(content)

    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_config(tmp_path / "missing.yaml")


def test_the_written_configuration_reads_back_equal(tmp_path: Path) -> None:
    """`config.yaml` of a run folder is the run's configuration, resolved."""
    config = load_config(None, ["rollout.staleness_policy=drop", "critic.backend=fsdp:d2", "imports=[a.py]"])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))

    assert load_config(file) == config
    assert config.rollout.staleness_policy is StalenessPolicy.DROP
    assert structure(RunConfig, unstructure(config)) == config


def test_secrets_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, tokens and passwords are redacted, however deep; counts of tokens are not secrets."""
    monkeypatch.setenv("MY_KEY", "hunter2")
    config = load_config(
        None,
        [
            "loggers=[{name: wandb, options: {api_key: '${oc.env:MY_KEY}', auth: {password: hunter2, token: x2}}}]",
            "algorithm.advantages.overlong.tokens=4",
        ],
    )

    text = dump_config(config)

    assert "hunter2" not in text and "x2" not in text
    assert yaml.safe_load(text)["algorithm"]["advantages"]["overlong"]["tokens"] == 4
    assert yaml.safe_load(text)["rollout"]["sampling"]["max_new_tokens"] == 256


@pytest.mark.parametrize(
    "override",
    [
        "data.options={a",
        "steps=!!int x",
        "name=a\x1bb",
        "name=\x00",
        "evaluation.data={name: [}",
        "data.options={? [a]: 1}",
        "algorithm.advantages=[]",
        "rollout.sampling.temperature=.nan",
        "data.options={1: 2}",
        "name=${a",
    ],
)
def test_an_override_that_is_no_yaml_is_refused_in_words(override: str) -> None:
    """Brackets, tags, control characters, odd keys, no number: an error that says what and what to do."""
    try:
        load_config(None, [override])
    except ConfigError as error:
        assert error.what and error.fix
        assert str(error).isprintable() or "\n" in str(error)
        assert "\x1b" not in str(error) and "\x00" not in str(error)
    else:
        assert override == "data.options={1: 2}", "options are the plugin's own, and checked with it"


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "[" * 3000,
        "1: 2",
        "true: 1",
        "a: &a\n  b: *a",
        "name: !!timestamp x",
        "data: {options: {a: " + "{a: " * 500 + "1" + "}" * 500 + "}}",
        "!!python/object:os.system x",
    ],
)
def test_a_file_that_is_no_yaml_is_refused_in_words(tmp_path: Path, text: str) -> None:
    """Keys given twice, nesting without end, keys that are no names, tags: never a traceback."""
    file = tmp_path / "run.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError) as told:
        load_config(file)

    assert told.value.what and len(str(told.value)) < 2000


@pytest.mark.parametrize("name", ["api_key", "token", "api_token", "tokens", "api_tokens"])
def test_a_secret_of_the_wrong_type_is_not_shown(name: str) -> None:
    """The error names the key and keeps the value to itself; a count of tokens is no secret, a list of them is."""

    @frozen
    class Options:
        api_key: int = 0
        token: int = 0
        api_token: str = ""
        tokens: tuple[str, ...] = ()
        api_tokens: str = ""

    with pytest.raises(WrongType) as told:
        structure(Options, {name: {"user": "hunter2"}}, "loggers[0].options")

    assert f"loggers[0].options.{name}" in str(told.value) and "hunter2" not in str(told.value)


@pytest.mark.parametrize("content", ["a: 1\n" * 300_000, "\0" * 2_000_000])
def test_a_file_without_end_is_not_read_to_it(content: str, tmp_path: Path) -> None:
    """A million characters are more than any run has; a device that never ends is read no further."""
    (tmp_path / "run.yaml").write_text(content)

    for path in (tmp_path / "run.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"cannot be read(.|\n)*more than a million characters"):
            load_config(path)
