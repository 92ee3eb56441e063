"""The data files: one row per frame, columns and types as LeRobot writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import rng
from headrace.testing.robot.pixels import FrameIdentity
from headrace.testing.robot.plan import Camera, RobotPlan
from headrace.testing.robot.video import frames_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLAIN_FEATURES: dict[str, tuple[str, tuple[int, ...]]] = {
    "observation.state": ("float32", (6,)),
    "action": ("float32", (4,)),
}
LAST_FEATURES: dict[str, tuple[str, tuple[int, ...]]] = {
    "timestamp": ("float32", (1,)),
    "frame_index": ("int64", (1,)),
    "episode_index": ("int64", (1,)),
    "index": ("int64", (1,)),
    "task_index": ("int64", (1,)),
}
"""What every data set has, after its own features."""
SUBTASK = "subtask_index"
RAGGED = "language_events"
UNALIGNED_ROWS = 7
"""Rows of a row group that does not end where an episode ends."""
ORPHAN_ROWS = 6


def features_of(plan: RobotPlan) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every feature but the videos, in the order of the columns."""
    images = {key: ("image", (c.height, c.width, c.channels)) for key, c in plan.images.items()}
    subtasks: dict[str, tuple[str, tuple[int, ...]]] = {SUBTASK: ("int64", (1,))} if plan.subtasks else {}
    return PLAIN_FEATURES | dict(plan.extra_features) | subtasks | images | LAST_FEATURES


def values(plan: RobotPlan, name: str, episode: int, count: int) -> Any:
    """A feature's values in the first `count` frames of an episode, [count, *shape], strings as a list."""
    import numpy as np

    dtype, shape = features_of(plan)[name]
    frames = np.arange(count)
    if name in LAST_FEATURES:
        return _last(plan, name, episode, frames)
    if name == SUBTASK and plan.subtasks:
        return (episode + frames[:, None] // 2) % len(plan.subtasks)
    if dtype == "string":
        return [f"{name} of frame {frame} in episode {episode}" for frame in frames]
    offset = rng.draw(rng.key("robot values", plan.seed, name), 0, 64)
    numbers = (
        1000 * episode + offset + frames.reshape(-1, *(1 for _ in shape)) + np.arange(np.prod(shape)).reshape(shape)
    )
    if dtype == "bool":
        return (numbers * 7 // 3) % 2 == 0
    if np.issubdtype(np.dtype(dtype), np.integer):
        return (numbers % min(np.iinfo(dtype).max + 1, 1 << 62)).astype(dtype)
    return (numbers / 3).astype(dtype)


def _last(plan: RobotPlan, name: str, episode: int, frames: NDArray[np.int64]) -> Any:
    import numpy as np

    known = episode < len(plan.episodes)
    if name == "timestamp":
        jitter = rng.draw_block(rng.key("robot clock", plan.seed, episode), 0, len(frames), 1000) / 1000 / plan.fps
        clock = 3.7 + episode + 1.02 * frames / plan.fps + jitter
        return (clock if plan.dirt.hardware_timestamps else frames / plan.fps).astype(np.float32)
    if name == "index":
        return frames + (plan.first(episode) if known else plan.first(len(plan.episodes)) + 100 * episode)
    if name == "task_index":
        return np.array([plan.task_of(episode, int(f)) if known else 0 for f in frames], dtype=np.int64)
    return frames if name == "frame_index" else np.full_like(frames, episode)


def encoded_image(pixels: NDArray[Any], camera: Camera) -> bytes:
    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    if camera.depth and camera.depth_unit == "m":
        pixels = pixels.astype(np.float32) / np.float32(1000)
    Image.fromarray(pixels).save(file, "TIFF" if camera.depth else "PNG")
    return file.getvalue()


def episode_table(plan: RobotPlan, episode: int, count: int) -> Any:
    """The rows of an episode; of one beyond the last, orphans."""
    import pyarrow as pa

    schema = _schema(plan)
    arrays = []
    for field in schema:
        if field.name == RAGGED:
            rows: Any = [[{"role": "user", "content": f"{i}"}] * (i % 3) for i in range(count)]
        elif field.name in plan.images:
            camera = plan.images[field.name]
            first = FrameIdentity(episode, 0, plan.number(field.name))
            frames = frames_of(camera, first, count, plan.seed)
            end = "tiff" if camera.depth else "png"
            rows = [
                {"bytes": encoded_image(frame, camera), "path": f"frame-{i:06d}.{end}"}
                for i, frame in enumerate(frames)
            ]
        else:
            found = values(plan, field.name, episode, count)
            scalar = features_of(plan)[field.name][1] == (1,) and field.name not in LAST_FEATURES
            rows = found if isinstance(found, list) else (found[:, 0] if scalar else found).tolist()
        arrays.append(pa.array(rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _schema(plan: RobotPlan) -> Any:
    import pyarrow as pa

    fields, described = [], {}
    for name, (dtype, shape) in features_of(plan).items():
        kind, metadata = _arrow_type(dtype, shape, plan.lists == "fixed")
        fields.append(pa.field(name, kind, metadata=metadata))
        described[name] = _described(dtype, shape)
    if plan.dirt.ragged_column:
        fields.append(pa.field(RAGGED, pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))))
        described[RAGGED] = {"feature": {k: _described("string", (1,)) for k in ("role", "content")}, "_type": "List"}
    told = {"huggingface": json.dumps({"info": {"features": described}, "fingerprint": f"{plan.seed:016x}"})}
    return pa.schema(fields, metadata=told if plan.lists == "fixed" else None)


def _arrow_type(dtype: str, shape: tuple[int, ...], fixed: bool) -> tuple[Any, dict[str, str] | None]:
    import pyarrow as pa

    if dtype == "image":
        return pa.struct({"bytes": pa.binary(), "path": pa.string()}), None
    kind = {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.type_for_alias(dtype)
    if shape == (1,):
        return kind, None
    if len(shape) == 1:
        return pa.list_(kind, shape[0]) if fixed else pa.list_(kind), None
    for _ in shape:
        kind = pa.list_(kind)
    extension = {
        "ARROW:extension:name": f"datasets.features.features.Array{len(shape)}DExtensionType",
        "ARROW:extension:metadata": json.dumps([list(shape), dtype]),
    }
    return kind, extension if fixed else None


def _described(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """A feature in the words of the `datasets` library."""
    if dtype == "image":
        return {"_type": "Image"}
    value = {"dtype": dtype, "_type": "Value"}
    if shape == (1,):
        return value
    if len(shape) == 1:
        return {"feature": value, "length": shape[0], "_type": "List"}
    return {"shape": list(shape), "dtype": dtype, "_type": f"Array{len(shape)}D"}


def write_table(path: Path, episodes: Sequence[Any], row_groups: str) -> None:
    """A data file of these episodes' rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    whole = pa.concat_tables(episodes)
    with pq.ParquetWriter(path, whole.schema, compression="snappy", use_dictionary=True) as writer:
        if row_groups == "episode":
            for table in episodes:
                writer.write_table(table)
        else:
            writer.write_table(whole, row_group_size=UNALIGNED_ROWS if row_groups == "unaligned" else len(whole))


def write_data(folder: Path, plan: RobotPlan) -> None:
    """Every data file, with the orphans that were asked for."""
    dirt, last = plan.dirt, len(plan.episodes)
    files = list(plan.files(plan.episodes_per_data_file))
    for number, (chunk, file, episodes) in enumerate(files):
        tables = [episode_table(plan, e, plan.episodes[e]) for e in episodes]
        if dirt.orphan_rows and number == len(files) - 1:
            tables.append(episode_table(plan, last, ORPHAN_ROWS))
        write_table(folder / plan.data_path.format(chunk_index=chunk, file_index=file), tables, plan.row_groups)
    extra = [episode_table(plan, last + 1, ORPHAN_ROWS)] if dirt.orphan_file else []
    if dirt.shadow_file:
        extra.append(_shadow(plan))
    for number, table in enumerate(extra, len(files)):
        place = {"chunk_index": number // plan.files_per_chunk, "file_index": number % plan.files_per_chunk}
        write_table(folder / plan.data_path.format(**place), [table], plan.row_groups)


def _shadow(plan: RobotPlan) -> Any:
    """Rows with the numbers of episode 0 and the values of another."""
    real, other = (episode_table(plan, episode, plan.episodes[0]) for episode in (0, len(plan.episodes)))
    for name in LAST_FEATURES:
        at = other.schema.get_field_index(name)
        other = other.set_column(at, other.schema.field(at), real.column(name))
    return other
