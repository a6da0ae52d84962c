"""Every config dataclass, and each one ⇄ JSON. Floor 0: plain data, no torch.

A config is complete and frozen: what is written to `config.json` is all that a verb needs to run again.
The docstring under a field is its help text on the command line.

    verbs      GrayConfig, DiagnoseConfig, ReportConfig, DemoConfig, AppConfig, BenchConfig, RecipesConfig,
               ReproduceConfig
    shell      DoctorConfig, CompletionConfig
    model      ModelConfig, GrayingConfig, InitConfig: what is trained
    data       DataConfig, AugmentConfig: on what
    objectives MAEConfig, DINOConfig: what is learned without labels
    hub        PushConfig, ExportConfig: what is published
    along      AlongConfig: judges at intervals of training
    training   TrainConfig, OptimConfig: how; one TrainConfig is one experiment
    encoding   to_json, from_json, to_command, changed_fields
"""

from wellcond.config.along import AlongConfig
from wellcond.config.data import IMAGENET_MEAN, IMAGENET_STD, AugmentConfig, DataConfig
from wellcond.config.encoding import changed_fields, decode, from_json, to_command, to_json
from wellcond.config.hub import ExportConfig, PushConfig
from wellcond.config.model import GrayingConfig, InitConfig, ModelConfig
from wellcond.config.objectives import DINOConfig, MAEConfig
from wellcond.config.shell import CompletionConfig, DoctorConfig
from wellcond.config.training import MAY_CHANGE, OptimConfig, TrainConfig
from wellcond.config.verbs import (
    AppConfig,
    BenchConfig,
    DemoConfig,
    DiagnoseConfig,
    GrayConfig,
    RecipesConfig,
    ReportConfig,
    ReproduceConfig,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MAY_CHANGE",
    "AlongConfig",
    "AppConfig",
    "AugmentConfig",
    "BenchConfig",
    "CompletionConfig",
    "DINOConfig",
    "DataConfig",
    "DemoConfig",
    "DiagnoseConfig",
    "DoctorConfig",
    "ExportConfig",
    "GrayConfig",
    "GrayingConfig",
    "InitConfig",
    "MAEConfig",
    "ModelConfig",
    "OptimConfig",
    "PushConfig",
    "RecipesConfig",
    "ReportConfig",
    "ReproduceConfig",
    "TrainConfig",
    "changed_fields",
    "decode",
    "from_json",
    "to_command",
    "to_json",
]
