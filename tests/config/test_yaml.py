"""YAML as people expect it: the traps of PyYAML, and every way to be no plain YAML."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.config import load_config, parse_config
from charlm.config.yaml import dump_yaml, load_yaml
from charlm.errors import ConfigError

VALUES = {
    "3e-4": 0.0003, ".5": 0.5, "-1.5": -1.5, ".inf": ".inf", "010": 10, "0x1F": "0x1F", "true": True, "null": None,
    "": None, "no": "no", "1:30": "1:30", "1_000": "1_000", "2001-02-03": "2001-02-03", "1.2.3": "1.2.3", ".": ".",
    "٣": "٣", "=": "=", "'3e-4'": "3e-4", "{b: [010, 2.0, x]}": {"b": [10, 2.0, "x"]},
}  # fmt: skip


def test_value_and_type():
    for text, value in VALUES.items():
        found = load_yaml(f"a: {text}", "f")["a"]
        assert (type(found), found) == (type(value), value), text
    assert load_yaml("a: &x 1\n<<: {b: 2}", "f") == {"a": 1, "<<": {"b": 2}}  # a lone anchor, and no merge key


REFUSED = {
    "a: 1\nb: 2\na: 3": "line 3, column 1: found key 'a' twice in one section",
    "a: &x 1\nb: *x": "line 2, column 4: found an alias (*name); write the value out",
    "1: x": "line 1, column 1: found key 1, which is not text",
    "a: !!python/object/apply:os.mkdir [made]": "line 1, column 4: found a tag (!name); write the plain value",
    "a: 1\n--- \nb: 2": "line 2, column 1: found another document",
    "a:\n\tb: 1": "line 2, column 1: found character '\\t' that cannot start any token",
    "seed: 1" + "0" * 100: "line 1, column 7: found an integer of 101 characters",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:40]))
def test_refused_with_its_place(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        load_yaml(text, "f.yaml")
    assert str(refusal.value) == f"f.yaml: {REFUSED[text]}; allowed: plain YAML"
    assert not any(tmp_path.iterdir()), "a tag has run code"


def test_what_a_terminal_obeys_is_written_out():
    for character in "\x1b\x85\u202e\u2028\ud800":
        value = {f"k{character}": f"a {character} b" * 20}
        assert character not in dump_yaml(value)
        assert load_yaml(dump_yaml(value), "f") == value


def test_files(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_bytes("\ufeffseed: 3\r\ndata: {source: Ümläut.txt}\r\n".encode())
    assert load_config(file) == parse_config({"seed": 3, "data": {"source": "Ümläut.txt"}}, "x")
    for content in (b"a: \xff", b"#" * 100_001):
        file.write_bytes(content)
        with pytest.raises(ConfigError):
            load_config(file)
    with pytest.raises(ConfigError, match="name too long; allowed: a YAML file, or a name from"):
        load_config(Path("a" * 300))


LOOKALIKES = st.sampled_from([*VALUES, "<<", "-", "?", "a: b", "a #b", "&a", "*a", "!a", "---", "...", "\ufeff"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | LOOKALIKES | st.floats().map(repr)
TEXTS |= st.integers().map(str) | st.text("0123456789.eE+-_:xo ", max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FINITE | TEXTS


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.dictionaries(TEXTS, PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(TEXTS, PLAIN, max_size=3), max_size=5)
)
def test_dump_and_load_give_the_same_value(value):
    found = load_yaml(dump_yaml(value), "f")
    assert found == value
    assert repr(found) == repr(value)  # 1 is not 1.0, nor true; 0.0 is not -0.0
