"""The configs that come with charlm: one purpose each, and packed into the wheel."""

import itertools
import tomllib
import zipfile
from pathlib import Path

import pytest

import charlm
from charlm.config import dump_config, ignored_options, load_config, purpose, shipped_configs
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
    assert load_config(Path("rhn")) == load_config(CONFIGS["rhn"])
    Path("lstm").write_text("seed: 7")
    assert load_config(Path("lstm")).seed == 7


def test_all_that_charlm_needs_to_run_is_in_the_wheel(tmp_path):
    pytest.importorskip("hatchling", reason="scripts/test-oldest installs no build backend")
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    info = f"charlm_trainer-{charlm.__version__}.dist-info"
    suffixes = (".py", ".typed", ".h", ".c", ".cpp", ".wasm", ".js", ".css", ".html", ".json", ".txt")
    needed = {file for file in (ROOT / "charlm").rglob("*") if file.suffix in suffixes}
    wanted = {file.relative_to(ROOT).as_posix(): file for file in needed}
    wanted |= {f"charlm/configs/{file.name}": file for file in CONFIGS.values()}
    wanted |= {f"{info}/licenses/LICENSE": ROOT / "LICENSE"}
    made = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    assert contents.keys() == wanted.keys() | made
    assert all(contents[name] == file.read_bytes() for name, file in wanted.items())
    assert f"\nVersion: {charlm.__version__}\n".encode() in contents[f"{info}/METADATA"]


def test_what_names_the_version_names_this_one_and_the_oldest_packages_are_the_lower_bounds():
    assert f"\nversion: {charlm.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {charlm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = (ROOT / "scripts/constraints-oldest.txt").read_text(encoding="utf-8").split("\n")
    for needed in project["dependencies"]:
        name, version = needed.split(">=")
        assert name == "torch" or any(line in (f"{name}=={version}", f"{name}=={version}.0") for line in oldest), name
