"""The contract: everything a backend author needs to import from areal.

    TrainEngine · InferenceEngine · RolloutWorkflow · Scheduler · WeightTransport · Objective

`areal_core.contract.CONTRACT` gives the version spoken, per role. Optional abilities are
in `areal_core.contract.optional`, errors in `areal_core.contract.errors`.
"""

from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, PolicyVersion, RequestId, TaskId
from areal_core.contract.inference import (
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceEngine,
    InferenceSpec,
    PauseMode,
    SamplingParams,
    Timings,
    VersionSpan,
)
from areal_core.contract.scheduler import Job, Scheduler, Worker, WorkerState, WorkerStatus
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
from areal_core.contract.workflow import (
    RewardInput,
    RewardResult,
    RewardStatus,
    RolloutWorkflow,
    Session,
    Tokenizer,
)

__all__ = [
    "CONTRACT",
    "ROLES",
    "ROUTED_EXPERTS",
    "EngineInfo",
    "EngineStatus",
    "Episode",
    "Generation",
    "GenerationRequest",
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
    "Session",
    "StopReason",
    "Sum",
    "TaskId",
    "TensorSpec",
    "Timings",
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
