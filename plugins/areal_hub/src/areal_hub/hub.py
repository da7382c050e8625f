"""The extension `hub`: names on the hub in a run's configuration, with their commits, and the folders they stand for.

Knows: which keys of a run may hold a name, and that a name with a commit is the same for ever.
Does not know: how files come here (`download`).
"""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from areal_core.config.schema import DataConfig, RunConfig
from areal_hub.names import HubName, hub_name

_ROLES = ("actor", "critic", "reference")


class Hub:
    """Satisfies `areal_core.plugins.extensions.ModelHub`."""

    def pinned(self, config: object) -> RunConfig:
        """Return a run's configuration with a commit in every name on the hub; downloads the models it names.

        Raises:
            ModelError: a model is neither on the hub nor here, or cannot be fetched.
        """
        assert isinstance(config, RunConfig)
        config = evolve(config, model=evolve(config.model, path=self._pinned(config.model.path)))
        for name in _ROLES:
            role = getattr(config, name)
            if role is not None and role.path:
                config = evolve(config, **{name: evolve(role, path=self._pinned(role.path))})
        if config.rollout.adapters:
            adapters = {name: self._pinned(path) for name, path in config.rollout.adapters.items()}
            config = evolve(config, rollout=evolve(config.rollout, adapters=adapters))
        held_out, sets = config.evaluation.data, config.evaluation.sets
        evaluation = evolve(
            config.evaluation,
            data=None if held_out is None else _pinned_data(held_out),
            sets={name: evolve(each, data=_pinned_data(each.data)) for name, each in sets.items()},
        )
        return evolve(config, data=_pinned_data(config.data), evaluation=evaluation)

    def folder(self, path: str) -> Path | None:
        """Return the folder with the files of a name, None if it is no name on the hub.

        Raises:
            ModelError: as `pinned`.
        """
        name = hub_name(path)
        if name is None:
            return None
        from areal_hub.download import model_files  # the library is not paid for by a local run

        return model_files(name)

    def _pinned(self, path: str) -> str:
        name, folder = hub_name(path), self.folder(path)
        return path if name is None or folder is None else str(HubName(name.repo, folder.name))


def _pinned_data(data: DataConfig) -> DataConfig:
    """Return a data set of the hub with its commit; one that is kept here, or cannot be asked about, as it is."""
    path = data.options.get("path")
    if data.name != "hub" or not isinstance(path, str) or (name := hub_name(path)) is None:
        return data
    from areal_hub.download import data_commit

    commit = data_commit(HubName(name.repo, name.revision or str(data.options.get("revision") or "")))
    kept = name.repo if commit or not name.revision else path
    return evolve(data, options={**data.options, "path": kept, **({"revision": commit} if commit else {})})


HUB = Hub()
