"""What commands write where the user says: nothing of the user's is lost by it, and none of it becomes text."""

import resource
import shutil

import pytest

OPTION = {"eval": "--per-char", "look": "--out", "report": "--out", "export": "--out"}


def words(command, run, out):
    """A command that writes to `out`."""
    more = {"look": ["--length", 100], "export": ["--to", "html"]}.get(command, [])
    return [command, run, *more, OPTION[command], out]


@pytest.fixture
def outputs(cli, copied_run, tmp_path):
    """A file of each command, in a folder of a text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.txt").write_text("so te rain\n")
    for command in OPTION:
        assert cli(*words(command, copied_run, folder / command)).code == 0
    return folder


def test_what_charlm_writes_is_no_text(cli, copied_run, outputs):
    shutil.copytree(copied_run, outputs / "runs/mine")
    for source in (outputs, f"{outputs}/**"):
        result = cli("data", "info", source, "--level", "byte")
        assert (result.code, result.out.split()[:2]) == (0, ["files", "1"])
        assert f"leaves out {outputs}/eval, {outputs}/export, {outputs}/look and 2 more: links to " in result.err
    result = cli("data", "info", f"{outputs}/runs/mine")
    assert result.error.startswith(f"{outputs}/runs/mine: a folder without text; ")


def test_commands_replace_only_what_charlm_wrote(cli, copied_run, outputs):
    (outputs / "years.html").write_text("<!DOCTYPE html>\n<title>years of work</title>")
    (outputs / "link").symlink_to("text.txt")
    (outputs / "nowhere").symlink_to("new")
    (outputs / "empty").touch()
    shutil.copy(copied_run / "checkpoints/best.safetensors", outputs)
    before = {path: path.read_bytes() for path in outputs.iterdir() if path.name != "nowhere"}
    for command in OPTION:
        for out in outputs.iterdir():
            if out.name not in (*OPTION, "empty"):
                assert cli(*words(command, copied_run, out)).error.startswith(f"{OPTION[command]} {out}: "), out
        assert cli(*words(command, copied_run, outputs / command)).code == 0
    assert cli(*words("eval", copied_run, outputs / "empty")).code == 0
    assert before.pop(outputs / "empty") == b""
    (outputs / "empty").unlink()
    assert before.keys() == {path for path in outputs.iterdir() if path.name != "nowhere"}
    assert all(path.read_bytes() == data for path, data in before.items() if path.name not in OPTION)


def test_a_run_may_be_new_below_its_text_but_not_hold_a_part_of_it(cli, tiny_config, tmp_path, text_file):
    folder = tmp_path / "texts"
    (folder / "part").mkdir(parents=True)
    for name in ("a.txt", "part/b.txt"):
        shutil.copy(text_file, folder / name)
    train = ["train", "--config", tiny_config, "--set", f"data.source={folder}", "--run-dir"]
    for run in (folder / "part", folder):
        assert cli(*train, run).error.startswith(f"{folder}: has files in {run}, the folder of the run; ")
    assert [path.name for path in (folder / "part").glob("[!.]*")] == ["b.txt"]
    assert cli(*train, folder / "runs/new").code == 0
    again = cli("train", "--resume", "--run-dir", folder / "runs/new", "--set", "train.max_steps=7")
    assert again.code == 0
    assert f"{folder}: leaves out {folder}/runs/new: links to folders, or what charlm wrote\n" in again.err


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_full_disk_leaves_the_earlier_file_whole(cli, trained_run, outputs, command):
    out = outputs / command
    out.chmod(0o600)
    before, names = out.read_bytes(), {*outputs.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        error = cli(*words(command, trained_run, out)).error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error == f"{OPTION[command]} {out}: File too large; allowed: a file that can be written"
    assert (out.read_bytes(), {*outputs.iterdir()}) == (before, names)
    assert cli(*words(command, trained_run, out)).code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert cli(*words(command, trained_run, "/dev/null")).code == 0
