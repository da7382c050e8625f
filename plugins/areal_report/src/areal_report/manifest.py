"""The loggers of the core, as the registry sees them. None is needed: `metrics.jsonl` is always written."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest

_DEVICES = ("cpu", "cuda", "npu")


def _tracked(name: str, factory: str, requires: str, summary: str) -> Manifest:
    return Manifest(
        role="logger",
        name=name,
        contract=(1, 0),
        factory=f"areal_report.loggers.tracked:{factory}",
        config="areal_report.loggers.tracked:TrackedConfig",
        requires=(requires,),
        extra=name,
        devices=_DEVICES,
        summary=summary,
    )


TENSORBOARD = Manifest(
    role="logger",
    name="tensorboard",
    contract=(1, 0),
    factory="areal_report.loggers.tensorboard:TensorBoardLogger",
    config="areal_report.loggers.tensorboard:TensorBoardConfig",
    requires=("torch>=2.11", "tensorboard>=2.15"),
    extra="tensorboard",
    devices=_DEVICES,
    summary="event files for TensorBoard, in the run folder",
)
PROMETHEUS = Manifest(
    role="logger",
    name="prometheus",
    contract=(1, 0),
    factory="areal_report.loggers.prometheus:PrometheusLogger",
    config="areal_report.loggers.prometheus:PrometheusConfig",
    requires=("prometheus-client>=0.21",),
    extra="prometheus",
    devices=_DEVICES,
    summary="the last step's metrics, for Prometheus to read",
)
TRACKIO = _tracked("trackio", "TrackioLogger", "trackio>=0.5", "Hugging Face's local-first tracker")
WANDB = _tracked("wandb", "WandbLogger", "wandb>=0.18", "Weights & Biases")
SWANLAB = _tracked("swanlab", "SwanlabLogger", "swanlab>=0.4", "SwanLab")
