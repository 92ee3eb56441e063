"""Robot data sets as LeRobot writes them, whose frames and rows say which ones they are."""

from headrace.testing.robot.pixels import FrameIdentity, frame_identity
from headrace.testing.robot.plan import EVERY_KIND, Camera, Dirt, RobotPlan
from headrace.testing.robot.write import write_robot_dataset

__all__ = ["EVERY_KIND", "Camera", "Dirt", "FrameIdentity", "RobotPlan", "frame_identity", "write_robot_dataset"]
