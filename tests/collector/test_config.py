"""The configuration file: all keys, defaults, and errors in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector import config
from collector.config import Config, ConfigError, load, pseudonym_key


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "firstfault.toml"
    path.write_text(text)
    return path


def test_every_section(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        cluster = "alpha"
        [store]
        uri = "s3://bucket/prefix"
        endpoint_url = "https://objects.example"
        path_style = true
        [budget]
        seconds = 60
        bytes = "1.5 GiB"
        file_bytes = "10MB"
        [redaction]
        on = false
        [spool]
        node = "/spool/n"
        [slurm]
        states = ["FAILED"]
        patience = 5.5
        admin_comment = true
        """,
    )
    found = load(path)
    assert found.cluster == "alpha"
    assert found.store.uri == "s3://bucket/prefix"
    assert found.store.options == {"endpoint_url": "https://objects.example", "path_style": True}
    assert (found.budget.seconds, found.budget.bytes, found.budget.file_bytes) == (60.0, 3 << 29, 10 << 20)
    assert found.budget.budget().bytes == 3 << 29
    assert found.redaction.on is False
    assert (found.spool.node, found.spool.head) == ("/spool/n", Config().spool.head)
    assert (found.slurm.states, found.slurm.patience, found.slurm.admin_comment) == (("FAILED",), 5.5, True)
    assert found.path == path


def test_empty_file_is_a_configuration(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    assert load(path) == Config(path=path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clustre = 'a'", "unknown key clustre (known here: budget, cluster, redaction, slurm, spool)"),
        ("[slurm]\nstate = ['FAILED']", "unknown key slurm.state"),
        ("[budget]\nseconds = 0", "budget.seconds must be a number above 0"),
        ("[budget]\nseconds = true", "budget.seconds must be a number above 0"),
        ("[budget]\nbytes = 'many'", "budget.bytes must be a whole number above 0 or a size"),
        ("[budget]\nbytes = -1", "budget.bytes must be a whole number above 0 or a size"),
        ("[redaction]\non = 'yes'", "redaction.on must be true or false"),
        ("[slurm]\nglobs = '/scratch'", "slurm.globs must be a list of texts"),
        ("budget = 3", "budget must be a section"),
        ("[store]\nuri = 3", "store.uri must be a text"),
        ("cluster = ", "not valid TOML"),
    ],
)
def test_errors_say_where(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_named_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "none.toml")
    monkeypatch.setenv(config.VARIABLE, str(tmp_path / "other.toml"))
    with pytest.raises(ConfigError, match="does not exist"):
        load()


def test_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.VARIABLE, str(written(tmp_path, "cluster = 'beta'")))
    assert load().cluster == "beta"


def test_without_any_file_all_is_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(config.VARIABLE, raising=False)
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "none.toml")
    assert load() == Config()


def test_pseudonym_key(tmp_path: Path) -> None:
    assert pseudonym_key(Config()) is None
    key = tmp_path / "key"
    path = written(tmp_path, f"[redaction]\npseudonym_key_file = '{key}'")
    with pytest.raises(ConfigError, match="cannot be read"):
        pseudonym_key(load(path))
    key.write_text("short")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        pseudonym_key(load(path))
    key.write_text("0123456789abcdef\n")
    assert pseudonym_key(load(path)) == b"0123456789abcdef"
