"""The configs that come with charlm: one purpose each, found by name from a checkout and from a wheel."""

import itertools
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import charlm
from charlm.config import dump_config, ignored_options, load_config
from charlm.config.shipped import find_config, purpose, shipped_configs
from tests.config.test_config import parse
from tests.conftest import ROOT

CONFIGS = shipped_configs()


def test_each_is_valid_says_what_it_is_for_and_sets_nothing_in_vain(cli):
    assert sorted(CONFIGS.values()) == sorted((ROOT / "configs").iterdir())
    configs = {name: load_config(file) for name, file in CONFIGS.items()}
    assert [pair for pair in itertools.combinations(configs, 2) if configs[pair[0]] == configs[pair[1]]] == []
    for name, config in configs.items():
        assert parse(dump_config(config)) == config
        assert ignored_options(config) == []
        assert CONFIGS[name].read_text(encoding="utf-8").startswith(f"# {purpose(CONFIGS[name])}\n")
        assert purpose(CONFIGS[name]).endswith(".")
    rows = [line.split(maxsplit=1) for line in cli("config", "list").out.splitlines()]
    assert rows == [[name, purpose(file)] for name, file in CONFIGS.items()]


def test_a_file_comes_before_the_shipped_config_of_its_name_and_a_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("lstm")) == load_config(ROOT / "configs/lstm.yaml")
    Path("rhn").mkdir()
    assert find_config(Path("rhn")) == CONFIGS["rhn"]
    Path("lstm").write_text("seed: 7")
    assert load_config(Path("lstm")).seed == 7


def test_wheel_and_sdist(tmp_path):
    """All that charlm needs to run is in the wheel, and a wheel made of the sdist is the same."""
    pytest.importorskip("hatchling", reason="scripts/test-oldest installs no build backend")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    contents = []
    for root in (ROOT, tmp_path / f"charlm_trainer-{charlm.__version__}"):
        (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
        with zipfile.ZipFile(wheel) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
            archive.extractall(tmp_path / "installed")
    assert contents[0] == contents[1]
    info = f"charlm_trainer-{charlm.__version__}.dist-info"
    suffixes = (".py", ".typed", ".h", ".c", ".cpp", ".wasm", ".js", ".css", ".html", ".json", ".txt")
    needed = {file for file in (ROOT / "charlm").rglob("*") if file.suffix in suffixes}
    wanted = {file.relative_to(ROOT).as_posix(): file for file in needed}
    wanted |= {f"charlm/configs/{file.name}": file for file in CONFIGS.values()}
    wanted |= {f"{info}/licenses/LICENSE": ROOT / "LICENSE"}
    made = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    assert contents[0].keys() == wanted.keys() | made
    assert all(contents[0][name] == file.read_bytes() for name, file in wanted.items())
    assert f"\nVersion: {charlm.__version__}\n".encode() in contents[0][f"{info}/METADATA"]
    program = "from charlm.config.shipped import shipped_configs; print(*shipped_configs().values())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    shown = subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True)
    assert shown.split() == [f"{tmp_path}/installed/charlm/configs/{file.name}" for file in CONFIGS.values()]


def test_what_names_the_version_names_this_one_and_the_oldest_packages_are_the_lower_bounds():
    assert f"\nversion: {charlm.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {charlm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = (ROOT / "scripts/constraints-oldest.txt").read_text(encoding="utf-8").split("\n")
    for needed in project["dependencies"]:
        name, version = needed.split(">=")
        assert name == "torch" or any(line in (f"{name}=={version}", f"{name}=={version}.0") for line in oldest), name
