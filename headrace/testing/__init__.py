"""Public helpers for tests: the stage laws, a local Hub, makers of small real datasets, a plain reader for robots."""

from headrace.testing.hub import LocalHub
from headrace.testing.laws import check_laws
from headrace.testing.makers import is_whole, ledger_row, write_jsonl, write_parquet, write_txt
from headrace.testing.robot import (
    EVERY_KIND,
    Camera,
    Dirt,
    FrameIdentity,
    RobotPlan,
    frame_identity,
    write_robot_dataset,
)
from headrace.testing.robot_oracle import MapStyleRobotDataset, item_differences

__all__ = [
    "EVERY_KIND",
    "Camera",
    "Dirt",
    "FrameIdentity",
    "LocalHub",
    "MapStyleRobotDataset",
    "RobotPlan",
    "check_laws",
    "frame_identity",
    "is_whole",
    "item_differences",
    "ledger_row",
    "write_jsonl",
    "write_parquet",
    "write_robot_dataset",
    "write_txt",
]
