"""The contract: everything a backend author needs to import from areal.

    TrainEngine · InferenceEngine · RolloutWorkflow · Scheduler · WeightTransport · Objective

`areal_core.contract.CONTRACT` gives the version spoken, per role. Optional abilities are
in `areal_core.contract.optional`, errors in `areal_core.contract.errors`.
"""

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.device import Device, DeviceMemory, SeenDevice
from areal_core.contract.estimator import Estimator
from areal_core.contract.ids import GroupId, PolicyVersion, RequestId, TaskId
from areal_core.contract.inference import (
    FLEET_METRICS,
    IMAGES,
    KV_USED_SHARE,
    NUM_PREEMPTED,
    PREFIX_HIT_SHARE,
    EngineStatus,
    Generation,
    GenerationRequest,
    Grammar,
    InferenceEngine,
    InferenceSpec,
    PauseMode,
    SamplingParams,
    Structure,
    Timings,
    VersionSpan,
)
from areal_core.contract.scheduler import Job, Scheduler, Share, Together, Worker, WorkerState, WorkerStatus
from areal_core.contract.train import (
    ROUTED_EXPERTS,
    EngineInfo,
    Head,
    LoraSpec,
    Objective,
    ObjectiveSpec,
    OptimizerSpec,
    Output,
    RankContext,
    Sum,
    TrainEngine,
    TrainReport,
    TrainSpec,
)
from areal_core.contract.version import CONTRACT, ROLES, accepts
from areal_core.contract.weights import (
    Offer,
    Receipt,
    TensorSpec,
    WeightManifest,
    WeightSink,
    WeightSource,
    WeightTransport,
)
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus, RolloutWorkflow, Session, Tokenizer

__all__ = [
    "CONTRACT",
    "FLEET_METRICS",
    "IMAGES",
    "KV_USED_SHARE",
    "NUM_PREEMPTED",
    "PREFIX_HIT_SHARE",
    "ROLES",
    "ROUTED_EXPERTS",
    "Device",
    "DeviceMemory",
    "EngineInfo",
    "EngineStatus",
    "Episode",
    "Estimator",
    "Generation",
    "GenerationRequest",
    "Grammar",
    "GroupId",
    "Head",
    "InferenceEngine",
    "InferenceSpec",
    "Job",
    "LoraSpec",
    "Objective",
    "ObjectiveSpec",
    "Offer",
    "OptimizerSpec",
    "Output",
    "PauseMode",
    "PolicyVersion",
    "RankContext",
    "Receipt",
    "RequestId",
    "RewardInput",
    "RewardResult",
    "RewardStatus",
    "RolloutWorkflow",
    "SamplingParams",
    "Scheduler",
    "SeenDevice",
    "Session",
    "Share",
    "StopReason",
    "Structure",
    "Sum",
    "TaskId",
    "TensorSpec",
    "Timings",
    "Together",
    "Tokenizer",
    "TrainEngine",
    "TrainReport",
    "TrainSpec",
    "Trajectory",
    "VersionSpan",
    "WeightManifest",
    "WeightSink",
    "WeightSource",
    "WeightTransport",
    "Worker",
    "WorkerState",
    "WorkerStatus",
    "accepts",
]
