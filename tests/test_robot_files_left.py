"""Of a robot run that was killed, the videos that its last state needs stay in the cache, and the others go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from robots import NUM_FRAMES, numbers, small_set

from headrace.fetch.cache import ShardCache
from headrace.serve.lerobot import StreamingLeRobotDataset
from headrace.testing import Camera, LocalHub

pytestmark = pytest.mark.usefixtures("quick")

KILLED = """
import json, os, signal, sys, time
from headrace.serve.lerobot import StreamingLeRobotDataset
save = sys.argv[1] == "save"
dataset = StreamingLeRobotDataset("org/robot", shuffle=True, seed=1 if save else 2, episode_pool_size=2)
items = iter(dataset)
seen = [int(next(items)["index"]) for _ in range(3)]
state = dataset.state_dict() if save else None
time.sleep(0.5)
print(json.dumps([seen, state]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kept(cache: Path, pattern: str) -> set[str]:
    return {str(path) for path in (cache / "hf_shards").rglob(pattern) if path.is_file() and path.name[0] != "."}


def test_what_the_last_state_of_a_killed_robot_run_needs_stays_and_other_videos_go(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = {"observation.images.top": Camera(height=32, width=64, episodes_per_file=(1,) * 6)}
    folder = small_set(tmp_path / "in", cameras=camera, episodes_per_data_file=1)
    hub.push("org/robot", folder)
    hub.push("org/robot", folder, branch="refs/tags/v3.0")
    cache = tmp_path / "data"
    for name, value in {**hub.env(), "HEADRACE_CACHE_DIR": str(cache)}.items():
        monkeypatch.setenv(name, value)
    for how in ("lose", "save"):
        command = [sys.executable, "-c", KILLED, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    seen, state = json.loads(done.stdout)
    ShardCache(cache).sweep()
    assert 2 <= len(kept(cache, "*.mp4*")) <= 3, "those of the pool, and the next"
    assert kept(cache, "meta/**/*")
    again = StreamingLeRobotDataset("org/robot", shuffle=True, seed=1, episode_pool_size=2)
    again.load_state_dict(state)
    rest = numbers(again)
    assert sorted([*seen, *rest]) == list(range(NUM_FRAMES))
