"""What commands write where the user says: nothing of the user's is lost by it, and none of it becomes text."""

import shutil

import pytest

TEXT = "so, the rain\n".replace(",", "").replace("h", "")


def words(command, run, out):
    """A command that writes to `out`."""
    return {
        "eval": ["eval", run, "--per-char", out],
        "look": ["look", run, "--length", 100, "--units", 1, "--out", out],
        "report": ["report", run, "--out", out],
        "export": ["export", run, "--to", "html", "--out", out],
    }[command]


@pytest.fixture
def outputs(cli, copied_run, tmp_path):
    """A file of each command, in a folder of a text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    for command in ("eval", "look", "report", "export"):
        assert cli(*words(command, copied_run, folder / command)).code == 0
    return folder


def test_what_charlm_writes_is_no_text(cli, copied_run, outputs):
    shutil.copytree(copied_run, outputs / "runs/mine")
    shutil.copy(copied_run / "checkpoints/best.safetensors", outputs)
    for source in (outputs, f"{outputs}/**", f"{outputs}/*"):
        result = cli("data", "info", source, "--level", "byte")
        assert (result.code, result.out.split()[:2]) == (0, ["files", "1"])
        assert f"leaves out {outputs}/best.safetensors (a checkpoint), {outputs}/eval (a table of" in result.err
    result = cli("data", "info", f"{outputs}/runs/mine")
    assert result.error.startswith(f"{outputs}/runs/mine: a folder without text; ")
    assert f"{outputs}/runs/mine/config.yaml (a file of the run)" in result.err


def test_each_command_replaces_its_own_earlier_file_alone(cli, copied_run, outputs):
    option = {"eval": "--per-char", "look": "--out", "report": "--out", "export": "--out"}
    (outputs / "years.html").write_text("<!DOCTYPE html>\n<title>years of work</title>")
    (outputs / "link").symlink_to("text.txt")
    (outputs / "nowhere").symlink_to("new")
    shutil.copy(copied_run / "checkpoints/best.safetensors", outputs)
    before = {path: path.read_bytes() for path in outputs.iterdir() if path.name != "nowhere"}
    for command in option:
        for out in outputs.iterdir():
            if out.name != command:
                assert cli(*words(command, copied_run, out)).error.startswith(f"{option[command]} {out}: "), out
        assert cli(*words(command, copied_run, outputs / command)).code == 0
    assert before.keys() == {path for path in outputs.iterdir() if path.name != "nowhere"}
    assert all(path.read_bytes() == data for path, data in before.items() if path.name not in option)


def test_an_earlier_file_is_written_again_unless_it_is_scored(cli, trained_run, outputs):
    (outputs / "empty").touch()
    (outputs / "link").symlink_to("eval")
    (outputs / "eval").write_text("position,character,nats,bits\r\n", newline="")
    for name in ("empty", "link"):
        assert cli(*words("eval", trained_run, outputs / name)).code == 0
    assert (outputs / "link").is_symlink()
    assert len((outputs / "eval").read_bytes()) == len((outputs / "empty").read_bytes()) > 1000
    scored = ["eval", trained_run, "--skip-unknown", "--file"]
    file, before = outputs / "eval", (outputs / "eval").read_bytes()
    assert cli(*scored, outputs / "empty", "--per-char", file).code == 0
    file.write_bytes(before)
    fault = cli(*scored, file, "--per-char", file).error
    assert fault == f"--per-char {file}: a text of the model or of this command; allowed: another file"
    assert file.read_bytes() == before


def test_a_run_in_its_text(cli, tiny_config, tmp_path, text_file):
    """The run's folder may be that of the text, or be new below it; it may not hold a part of the text."""
    folder = tmp_path / "texts"
    for name in ("a.txt", "part/b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(text_file, folder / name)
    train = ["train", "--config", tiny_config, "--set", f"data.source={folder}", "--run-dir"]
    assert cli(*train, folder / "part").error == (
        f"{folder}: has files in {folder}/part, the folder of the run; allowed: a run's folder without files of its "
        "text; take another --run-dir"
    )
    assert sorted(path.name for path in (folder / "part").iterdir() if path.name != ".lock") == ["b.txt"]
    said = ""
    for run in (folder / "runs/new", folder):
        begun = cli(*train, run)
        assert begun.code == 0
        again = cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=7")
        assert again.code == 0, again.err
        said += begun.err + again.err
    assert said.count(f"{folder}: leaves out {folder}/runs/new (a run)\n") == 1
    (folder / "part/metrics.jsonl").write_text("years of work")
    error = cli("train", "--config", tiny_config, "--run-dir", folder / "part").error
    assert error == f"{folder}/part/metrics.jsonl: exists, and the run would write to it; allowed: another --run-dir"
