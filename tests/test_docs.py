"""What the documents show is run; what they link to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT, name

from headrace.testing import LocalHub, write_parquet, write_robot_dataset
from headrace.testing.tokenizers import write_tokenizer


def test_the_example_in_the_readme_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    lines = [line for line in code[1].splitlines() if line.strip()]
    assert len(lines) <= 8
    card = b"---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - {split: train, path: sample/10BT/*}\n---\n"
    files = {f"sample/10BT/{p.name}": p for p in write_parquet(tmp_path / "in", [[40, 40], [40]])}
    with LocalHub() as hub:
        hub.push("HuggingFaceFW/fineweb", {"README.md": card, **files})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.chdir(tmp_path)
        write_tokenizer(tmp_path / "my-tokenizer")
        scope: dict[str, object] = {}
        exec(code[1], scope)  # noqa: S102 - our own README
    assert "HuggingFaceFW/fineweb" in capsys.readouterr().out
    assert isinstance(scope["state"], dict)
    assert (tmp_path / "data" / "hf_shards" / "HuggingFaceFW" / "fineweb" / "train").is_dir()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:.*episodes for .* consumers")
def test_the_example_with_robots_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    folder = write_robot_dataset(tmp_path / "in", episodes=[20] * 10, fps=15)
    with LocalHub() as hub:
        hub.push("lerobot/droid", folder, branch="refs/tags/v3.0")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.chdir(tmp_path)
        exec(code, {})  # noqa: S102 - our own README
    assert "16" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_names_the_two_commands_and_the_makefile_has_them() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for verb in ("demo", "test"):
        assert f"make {verb}" in readme
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE)


def test_every_variable_in_the_readme_is_read_and_every_one_read_is_in_the_readme() -> None:
    readme, run = (ROOT / "README.md").read_text(), (ROOT / "headrace" / "run.py").read_text()
    ours = set(re.findall(r'"((?:HEADRACE|HF)_[A-Z_]+)"', run))
    assert ours <= set(re.findall(r"`((?:HEADRACE|HF)_[A-Z_]+)`", readme))
