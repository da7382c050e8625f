"""Which plugin plays a role: five stages, each paid for only when it is asked for.

    discover -> describe -> probe -> load -> build

Knows: the order of the stages, what is cached, what an overlay or a user's file adds.
Does not know: how any one stage is done; each has a module of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import BackendBroken, CapabilityError, PluginError
from areal_core.contract.version import CONTRACT, ROLES
from areal_core.plugins import describe as description
from areal_core.plugins import probe as probing
from areal_core.plugins.catalogue import PROOF
from areal_core.plugins.claims import Claim, holds
from areal_core.plugins.devices import seen_kinds
from areal_core.plugins.discovery import Discovery, Entry, discover
from areal_core.plugins.lookup_errors import duplicate, not_found, unknown_role
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.probe import Probe
from areal_core.plugins.provider import Factory, Provider, refuse_options, structured
from areal_core.plugins.user_file import load_file, resolve

Key = tuple[str, str]
Overlay = Mapping[Key, "Factory | tuple[Manifest, Factory]"]


@frozen(kw_only=True)
class Listing:
    """One name a role can be played by, and where it comes from: a distribution, a file or an overlay."""

    role: str
    name: str
    origin: str

    @property
    def proof(self) -> bool:
        """Whether it proves the conformance suite, and is nothing to run or recommend."""
        return self.origin.partition(" ")[0] == PROOF


class Registry:
    """Finds plugins by role and name, and builds them.

    One per process (`default_registry()`); tests and notebooks make their own or use `overlay`.
    Names travel between processes, never objects: every worker asks its own registry.
    Not safe to change from two threads at once; reading is.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        devices: Callable[[], frozenset[str]] | None = None,
        entries: Overlay | None = None,
    ) -> None:
        """Import and read nothing yet.

        Args:
            environ: where AREAL_PLUGINS is read; the process's own environment if None.
            devices: returns the device kinds of this machine; those the role `device` sees if None.
            entries: names to add or replace for good, as `overlay` does for a while.
        """
        self._environ = environ
        self._devices = devices or functools.partial(seen_kinds, self)
        self._discovery: Discovery | None = None
        self._manifests: dict[Key, Manifest | PluginError] = {}
        self._files: dict[Path, tuple[Provider, ...]] = {}
        self._overlays: list[dict[Key, Provider]] = []
        if entries:
            self._overlays.append({key: self._overlaid(key, value) for key, value in entries.items()})

    @property
    def discovery(self) -> Discovery:
        """What is installed, looked up once. Imports no plugin."""
        if self._discovery is None:
            self._discovery = discover(self._environ)
        return self._discovery

    def names(self, role: str) -> list[str]:
        """Return the names that can play a role, sorted; those of broken plugins are among them.

        Raises:
            PluginError: there is no such role.
        """
        return [listing.name for listing in self.listings(role)]

    def listings(self, role: str | None = None) -> list[Listing]:
        """Return every name with its origin, of one role or of all, in the order of the roles; imports nothing."""
        if role is not None and role not in ROLES:
            raise unknown_role(role)
        origins: dict[Key, str] = {}
        for key, entries in self.discovery.roles.items():
            origins[key] = " and ".join(entry.origin for entry in entries)
        for layer in (self._from_files(), *self._overlays):
            origins.update({key: provider.origin for key, provider in layer.items()})
        ordered = sorted(origins, key=lambda key: (ROLES.index(key[0]), key[1]))
        return [
            Listing(role=key[0], name=key[1], origin=origins[key]) for key in ordered if role is None or key[0] == role
        ]

    def describe(self, role: str, name: str) -> Manifest:
        """Return the plugin's manifest; imports its manifest module and nothing heavier.

        Raises:
            BackendNotFound: no such name; the message lists the installed ones and the near one.
            DuplicateName: two distributions claim it.
            BackendBroken, ManifestError, ContractMismatch: the plugin is there but cannot be used.
        """
        provider = self._in_hand(role, name)
        if provider is not None:
            return provider.manifest
        entry = self._entry(role, name)
        if (role, name) not in self._manifests:
            try:
                self._manifests[role, name] = description.read_manifest(entry)
            except PluginError as exc:
                self._manifests[role, name] = exc
        found = self._manifests[role, name]
        if isinstance(found, PluginError):
            raise found
        return found

    def probe(self, role: str, name: str) -> Probe:
        """Tell whether the plugin's requirements and devices are here; imports no engine.

        Raises:
            PluginError: as `describe`.
        """
        return self._probe(role, name, self._devices())

    def check_engine(self, role: str, name: str) -> None:
        """Refuse a plugin whose requirements are not here; called while planning, imports no engine.

        Raises:
            EngineMissing: names what is missing and the command that brings it.
            PluginError: as `describe`.
        """
        found = self._probe(role, name, ())
        if found.missing:
            raise description.engine_missing(role, name, f"missing: {', '.join(found.missing)}", found.fix)

    def load(self, role: str, name: str) -> Factory:
        """Import the plugin's engine and return its factory, to be called with a config or with nothing.

        Raises:
            EngineMissing: what the plugin drives is not installed, or too old.
            BackendBroken: the plugin raises when imported.
            PluginError: as `describe`.
        """
        provider = self._in_hand(role, name)
        if provider is not None:
            return provider.factory
        manifest, entry = self.describe(role, name), self._entry(role, name)
        self.check_engine(role, name)
        factory = description.load_object(manifest.factory, manifest, entry)
        if not callable(factory):
            raise BackendBroken(
                f"{description.noun(role)} {name!r} of {entry.origin} cannot be built",
                why=f"{manifest.factory} is of type {type(factory).__name__} and cannot be called",
            )
        return factory

    def config_class(self, role: str, name: str) -> type | None:
        """Return the class of the plugin's options, None if it takes none; does not load the factory.

        Raises:
            PluginError: as `load`.
        """
        provider = self._in_hand(role, name)
        if provider is not None:
            return provider.config
        manifest, entry = self.describe(role, name), self._entry(role, name)
        if manifest.config is None:
            return None
        found = description.load_object(manifest.config, manifest, entry)
        if not isinstance(found, type):
            raise BackendBroken(
                f"{description.noun(role)} {name!r} of {entry.origin} has no config class",
                why=f"{manifest.config} is of type {type(found).__name__}",
            )
        return found

    def options(self, role: str, name: str, options: Mapping[str, Any], path: str = "") -> object | None:
        """Check options before anything heavy is loaded; return the config instance, None without a config class.

        Raises:
            UnknownKey, WrongType: with the dotted path that begins with `path`.
        """
        provider = self._in_hand(role, name)
        if provider is not None and provider.keywords:
            provider.check(options, path)
            return None
        config = self.config_class(role, name)
        if config is None:
            refuse_options(self.describe(role, name), options, path)
            return None
        with self._at_work():
            return structured(config, options, path)

    def build(self, role: str, name: str, options: Mapping[str, Any] | None = None, path: str = "") -> object:
        """Load the plugin and call its factory with its checked options.

        Args:
            options: plain data as in the yaml, or an instance of the config class.
            path: where the options stand in the configuration, the beginning of every path in an error.

        Raises:
            UnknownKey, WrongType: the options do not fit.
            PluginError: as `load`. Whatever the factory itself raises passes through.
        """
        given = {} if options is None else options
        provider = self._in_hand(role, name)
        with self._at_work():
            if provider is None:
                config = self.options(role, name, given, path)
                factory = self.load(role, name)
                return factory() if config is None else factory(config)
            return provider.build(given, path)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Be the registry that `current_registry` returns."""
        before = _AT_WORK.set(self)
        try:
            yield
        finally:
            _AT_WORK.reset(before)

    def require(
        self, role: str, name: str, key: str, *, device: str | None = None, facts: Mapping[str, str] | None = None
    ) -> Claim:
        """Return the claim of an ability, or refuse; called while planning, before anything is loaded.

        An ability the manifest does not mention is refused like one it denies. `device` and other `facts` (the
        backend's options, by name) decide conditional claims; conditions on what is not told count as met.

        Raises:
            CapabilityError: not claimed, or its condition does not hold; names the backends that can.
        """
        claim = self.describe(role, name).claims.get(key)
        if claim is not None and _claimed(claim, device, facts):
            return claim
        others = self.capable(role, key, device=device)
        raise CapabilityError(
            f"{description.noun(role)} {name!r} cannot do {key!r}" + (f" on {device}" if device else ""),
            why=_refusal(claim),
            fix=f"backends that can: {', '.join(others)}" if others else f"no installed {description.noun(role)} can",
        )

    def capable(self, role: str, key: str, *, device: str | None = None) -> list[str]:
        """Return the names of the usable plugins of a role that claim an ability."""
        able: list[str] = []
        for name in (listing.name for listing in self.listings(role) if not listing.proof):
            try:
                claim = self.describe(role, name).claims.get(key)
            except PluginError:
                continue  # a broken plugin can do nothing; doctor tells why
            if claim is not None and _claimed(claim, device):
                able.append(name)
        return able

    @contextmanager
    def overlay(self, entries: Overlay) -> Iterator[Registry]:
        """Add or replace names while the `with` block runs, and restore them after, whatever happens.

        Example: `with registry.overlay({("reward", "always_one"): lambda: always_one}): ...`
        A bare factory is called without a config and claims nothing; give (manifest, factory) for more.
        """
        layer = {key: self._overlaid(key, value) for key, value in entries.items()}
        self._overlays.append(layer)
        try:
            yield self
        finally:
            self._overlays[:] = [other for other in self._overlays if other is not layer]

    def add_file(self, path: str | Path) -> list[Listing]:
        """Run a user's .py file and register what it marks; a file already added is not run again.

        Raises:
            ConfigError: the file is missing, raises (with its file and line), or marks nothing.
            ManifestError, ContractMismatch: the manifest of a backend it marks cannot be used.
            DuplicateName: it takes a name that is installed or that another file defines. Nothing is registered then.
        """
        resolved = resolve(path)
        if resolved not in self._files:
            providers = load_file(resolved)
            taken = {key: entries[0].origin for key, entries in self.discovery.roles.items()}
            taken |= {key: provider.origin for key, provider in self._from_files().items()}
            for provider in providers:
                key = (provider.manifest.role, provider.manifest.name)
                if key in taken:
                    raise duplicate(*key, taken[key], provider.origin)
                taken[key] = provider.origin
            self._files[resolved] = tuple(providers)
        return [Listing(role=p.manifest.role, name=p.manifest.name, origin=p.origin) for p in self._files[resolved]]

    def _probe(self, role: str, name: str, kinds: Iterable[str]) -> Probe:
        manifest = self.describe(role, name)
        in_hand = self._in_hand(role, name) is not None
        distribution = manifest.name if in_hand else self._entry(role, name).distribution
        return probing.probe(manifest, distribution, kinds)

    def _from_files(self) -> dict[Key, Provider]:
        every = (provider for providers in self._files.values() for provider in providers)
        return {(provider.manifest.role, provider.manifest.name): provider for provider in every}

    def _in_hand(self, role: str, name: str) -> Provider | None:
        for layer in reversed(self._overlays):
            if (role, name) in layer:
                return layer[role, name]
        return self._from_files().get((role, name))

    def _entry(self, role: str, name: str) -> Entry:
        entries = self.discovery.roles.get((role, name), ())
        if not entries:
            origins = {listing.name: listing.origin for listing in self.listings(role) if not listing.proof}
            raise not_found(role, name, origins, self.discovery.hidden)
        if len(entries) > 1:
            raise duplicate(role, name, entries[0].origin, entries[1].origin)
        return entries[0]

    def _overlaid(self, key: Key, value: Factory | tuple[Manifest, Factory]) -> Provider:
        if not isinstance(value, tuple):
            manifest = Manifest(role=key[0], name=key[1], contract=CONTRACT[key[0]], factory="overlay:factory")
            return Provider(manifest=manifest, factory=value, config=None, origin="overlay")
        manifest, factory = value
        config = None if manifest.config is None else description.resolve(manifest.config)
        assert config is None or isinstance(config, type), f"{manifest.config} is no class"
        return Provider(manifest=manifest, factory=factory, config=config, origin="overlay")


def _claimed(claim: Claim, device: str | None, facts: Mapping[str, str] | None = None) -> bool:
    if not claim.claimed:
        return False
    known = {**(facts or {}), **({} if device is None else {"device": device})}
    return not claim.condition or holds(claim.condition, known)


def _refusal(claim: Claim | None) -> str:
    if claim is None:
        return "its manifest does not claim it"
    return f"{claim.why} ({claim.issue})" if claim.issue else claim.why


_AT_WORK: ContextVar[Registry] = ContextVar("areal registry at work")


def current_registry() -> Registry:
    """Return the registry that checks options or builds a plugin now, for plugins made of others; else the default."""
    return _AT_WORK.get(None) or default_registry()


@functools.cache
def default_registry() -> Registry:
    """Return the registry of this process, made on first use."""
    return Registry()
