# The public names, for type checkers and editors; `__init__.py` imports each when it is first used.
from areal_core.cli.train import train as train
from areal_core.config.load import load_config as load_config
from areal_core.config.plan import Plan as Plan
from areal_core.config.plan import make_plan as make_plan
from areal_core.config.schema import RunConfig as RunConfig
from areal_core.contract import *  # noqa: F403
from areal_core.contract.batch import Batch as Batch
from areal_core.contract.errors import ArealError as ArealError
from areal_core.contract.errors import CapabilityError as CapabilityError
from areal_core.contract.errors import ConfigError as ConfigError
from areal_core.contract.errors import DatasetError as DatasetError
from areal_core.contract.errors import PluginError as PluginError
from areal_core.contract.errors import RewardFailed as RewardFailed
from areal_core.contract.errors import RolloutError as RolloutError
from areal_core.contract.errors import TrainError as TrainError
from areal_core.contract.errors import WeightSyncError as WeightSyncError
from areal_core.contract.errors import WorkerError as WorkerError
from areal_core.contract.trajectory import TrajectoryBuilder as TrajectoryBuilder
from areal_core.contract.workflow import require_ok as require_ok
from areal_core.plugins.claims import Claim as Claim
from areal_core.plugins.claims import full as full
from areal_core.plugins.claims import not_yet as not_yet
from areal_core.plugins.claims import unsupported as unsupported
from areal_core.plugins.claims import when as when
from areal_core.plugins.manifest import Manifest as Manifest
from areal_core.plugins.marks import accept as accept
from areal_core.plugins.marks import backend as backend
from areal_core.plugins.marks import dataset as dataset
from areal_core.plugins.marks import device as device
from areal_core.plugins.marks import estimator as estimator
from areal_core.plugins.marks import objective as objective
from areal_core.plugins.marks import reward as reward
from areal_core.plugins.marks import workflow as workflow
from areal_core.plugins.registry import Registry as Registry
from areal_core.plugins.registry import default_registry as default_registry
from areal_trainer.trainer import Trainer as Trainer

__version__: str
