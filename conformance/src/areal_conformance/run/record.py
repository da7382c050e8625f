"""What a run leaves behind, as data: one row a check, one record a run, and their JSON.

Knows: the fields of report.json and its schema version.
Does not know: what the rows amount to (`verdict`) and how they look (`report`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cattrs
from attrs import Factory, field, frozen

from areal_conformance.check import Check, Tier
from areal_conformance.outcome import Outcome
from areal_core.contract.errors import ConfigError, StorageError

SCHEMA = 1
"""Of report.json. A field more keeps the number, and readers ignore it; one less, or another meaning, raises it."""


@frozen(kw_only=True)
class Row:
    """One check of the profile, and how it ended.

    Example: Row(id="infer.pause.freezes", title="...", law=7, spec="infer#pause", level=1, tier=Tier.CORE)
    """

    id: str
    title: str
    law: int
    spec: str
    level: int = field(converter=int)
    tier: Tier = field(converter=Tier)
    claims: tuple[str, ...] = ()
    """What it looks at where claimed, or at the refusal of where not."""
    provisional: bool = False
    outcome: Outcome = field(default=Outcome.NOT_RUN, converter=Outcome)
    message: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    numbers: dict[str, float] = Factory(dict)
    known: str = ""
    """Kind of the ledger's entry that was applied; empty if none was."""

    @property
    def area(self) -> str:
        """Return what the report groups by: the first two words of the id."""
        return ".".join(self.id.split(".")[:2])

    @property
    def missing(self) -> bool:
        """Whether nothing at all is known of it; a hang the ledger declares is known."""
        return self.outcome is Outcome.NOT_RUN and not self.known


def row_of(check: Check) -> Row:
    """Return the row of a check that has not run."""
    shared = ("id", "title", "law", "spec", "level", "tier", "provisional")
    return Row(claims=(*check.requires, *check.unless), **{name: getattr(check, name) for name in shared})


@frozen(kw_only=True)
class Subject:
    """What was held to the contract."""

    role: str
    name: str
    device: str
    ranks: int
    level: int
    origin: str = ""
    """Distribution and version."""
    mutant: str = ""
    imports: tuple[str, ...] = ()
    contract: str = ""
    """The version its manifest was written for."""
    stand_ins: str = ""
    """What answered for the device, and what that leaves open; empty where it was the device itself."""
    patience: float = 1.0
    """What the run multiplied every deadline with."""


@frozen(kw_only=True)
class Source:
    """What a plugin was made of (`run.provenance`)."""

    name: str
    """Distribution, or a user's file."""
    version: str = ""
    commit: str = ""
    """Where the files are in a checkout, or were installed from one: `+` if they were changed."""
    sha256: str = ""
    """Over the files of its packages."""
    files: int = 0
    """How many those are."""


@frozen(kw_only=True)
class Answer:
    """One claim of the manifest, and whether it counts on this device with the adapter's options."""

    key: str
    support: str
    counts: bool
    condition: str = ""
    why: str = ""
    issue: str = ""


@frozen(kw_only=True)
class Family:
    """Models that the adapter says the engine takes, and how many of them a check of the zoo draws."""

    name: str
    """As `model_type` of its config.json."""
    drawn: int


@frozen(kw_only=True)
class Widened:
    """A tolerance of the adapter."""

    check: str
    atol: float
    rtol: float
    why: str


@frozen(kw_only=True)
class Bound:
    """What a figure of level 5 was held to."""

    figure: str
    at_least: float | None
    at_most: float | None
    by: str
    """The adapter, or the name of the file of whoever made the run."""


@frozen(kw_only=True)
class Declared:
    """An entry of the ledger that applies to this run."""

    check: str
    kind: str
    match: str
    reason: str
    issue: str
    expires: str


@frozen(kw_only=True)
class Standing:
    """The verdict of a part: the core of the role, or one ability."""

    name: str
    verdict: str
    line: str


@frozen(kw_only=True)
class Record:
    """One run. Everything a report shows comes from here."""

    schema: int = SCHEMA
    suite: str
    """Version of areal-conformance."""
    core: str
    """Version of areal-core."""
    contract: dict[str, str]
    """Role -> contract version of this core."""
    subject: Subject
    verdict: str = "incomplete"
    line: str = ""
    standings: tuple[Standing, ...] = ()
    left_out: dict[str, int] = Factory(dict)
    """Why -> checks of the role that are not in the profile: more ranks or a higher level than asked."""
    claims: tuple[Answer, ...] = ()
    families: tuple[Family, ...] = ()
    """Of an engine; what it does not name is refused when it starts, or computed right."""
    traits: tuple[str, ...] = ()
    """What not every backend can do with such a family, and this one can: `rope.yarn`, `window`, ..."""
    tolerances: tuple[Widened, ...] = ()
    ledger: tuple[Declared, ...] = ()
    bounds: tuple[Bound, ...] = ()
    """Of figures; a report of level 4 or less has none."""
    checks: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    laws: dict[str, str] = Factory(dict)
    versions: dict[str, str] = Factory(dict)
    """Python, torch, the engine's requirements, the platform."""
    git: str = ""
    """Commit of the folder the run was started in, `+` if it was changed; empty outside a repository."""
    sources: tuple[Source, ...] = ()
    """What the plugin was made of; two for a pair, and one for each file of the user."""
    seed: int = 0
    started: str = ""
    seconds: float = 0.0
    command: str = ""


_CONVERTER = cattrs.Converter()
for _words in (Tier, Outcome):  # a str by class, and so left as it is, which another process cannot be sent
    _CONVERTER.register_unstructure_hook(_words, str)


def plain(value: Any) -> Any:
    """Return attrs data as what JSON holds. Any: both are open."""
    return _CONVERTER.unstructure(value)


def row_from(data: Mapping[str, Any]) -> Row:
    """Return the row that `plain` made."""
    return _CONVERTER.structure(data, Row)


def record_from(data: Mapping[str, Any]) -> Record:
    """Return the record that `plain` made; the hash of a report file is no part of it.

    Raises:
        ConfigError: another schema, or fields that are missing or of another type.
    """
    found = data.get("schema") if isinstance(data, Mapping) else None
    if found != SCHEMA:
        raise ConfigError(
            f"a report of schema {found!r} cannot be read",
            why=f"this suite reads schema {SCHEMA}",
            fix="create the report again with this suite",
        )
    try:
        return _CONVERTER.structure({key: value for key, value in data.items() if key != "sha256"}, Record)
    except cattrs.BaseValidationError as error:
        raise ConfigError("the report is not well formed", why="; ".join(cattrs.transform_error(error))) from error


def read_record(path: Path) -> Record:
    """Read report.json, or the one in a folder.

    Raises:
        ConfigError: it is not there, no JSON, or not a report.
    """
    return record_from(read_data(path))


def read_data(path: Path) -> Mapping[str, Any]:
    """Read report.json, or the one in a folder, as it stands. Any: JSON.

    Raises:
        ConfigError: it is not there, or no JSON object.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read", why=str(error), fix="give a report.json, or its folder") from error
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON", why=str(error), fix="give a report.json, or its folder") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file} is no report", why="it holds no object", fix="give a report.json, or its folder")
    return data


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader never sees half of it.

    Raises:
        StorageError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written", why=str(error)) from error
