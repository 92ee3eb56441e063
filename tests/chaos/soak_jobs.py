"""The jobs of a soak run, and their data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chaos_data import Data, make_data

FRAMES = 40
EPISODES = 24


@dataclass(frozen=True)
class Soaked:
    """A job: what it reads, and whether its workers stay from epoch to epoch or are fresh in each."""

    kind: str
    stay: bool

    @property
    def name(self) -> str:
        return f"{self.kind}, workers that stay" if self.stay else f"{self.kind}, fresh workers"


JOBS = {
    "robot-fresh": Soaked("robot", False),
    "robot-stay": Soaked("robot", True),
    "tokens-fresh": Soaked("tokens", False),
    "tokens-stay": Soaked("tokens", True),
    "rows-stay": Soaked("rows", True),
    "pictures-fresh": Soaked("pictures", False),
}


def data_of(kind: str, root: Path, *, small: bool) -> Data:
    """The data of a kind; a robot's videos are larger than those of chaos runs, so that a frame that is kept shows."""
    if kind != "robot":
        return make_data(kind, root, shards=6 if small else 40)
    from headrace.testing import Camera, write_robot_dataset

    folder, episodes = root / kind, 4 if small else EPISODES
    if not folder.exists():
        cameras = {"observation.images.top": Camera(height=240, width=320, codec="h264", episodes_per_file=2)}
        write_robot_dataset(folder, episodes=[FRAMES] * episodes, fps=10, cameras=cameras, episodes_per_data_file=2)
    return Data(kind, folder, {str(frame): 0 for frame in range(FRAMES * episodes)})
