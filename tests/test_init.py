"""`wintermute init`, and the configuration it writes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.full_config import full_config
from tests.world.warm import Ended, Interpreter
from wintermute.config.read import read_config
from wintermute.config.schema import Secret
from wintermute.llm.providers import PROVIDERS
from wintermute.memory.status import Machine, first_backend
from wintermute.templates import shipped_prompts

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {"WINTERMUTE_PASSWORD": "x"}


def init(python: Interpreter, folder: Path, *flags: str) -> Ended:
    return python.run("init", *flags, str(folder), cwd=Path.cwd(), env={"PATH": os.defpath})


def test_the_first_configuration_reads_back_as_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(full_config())
    config = read_config(path, ENVIRONMENT)
    path.write_text(
        "matrix: {homeserver: https://matrix.example.org, user_id: '@wintermute:example.org',"
        " owner: '@you:example.org', password: {env: WINTERMUTE_PASSWORD}}\n"
        "llm: {backends: {local: {base_url: 'http://127.0.0.1:8080/v1', model: my-model}}}\n"
    )
    assert config == read_config(path, ENVIRONMENT)


def test_what_nobody_edited_is_nobodys_configuration(tmp_path: Path, python: Interpreter) -> None:
    """As in the folder of a checkout, whose config.yaml is the one that `init` writes."""
    (tmp_path / "config.yaml").write_bytes((ROOT / "config.yaml").read_bytes())
    env = {"PATH": os.defpath, **ENVIRONMENT}
    told = "config.yaml: matrix.homeserver is still the example: change the lines marked EDIT\n"
    done = python.run("run", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr.decode()) == (2, f"wintermute: {told}")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    checked = python.run("check", cwd=tmp_path, env=env)
    assert checked.returncode == 1
    assert f"fail  config: {told}" in checked.stdout.decode()


def test_a_new_folder_has_all_that_a_start_needs(tmp_path: Path, python: Interpreter) -> None:
    folder = tmp_path / "deep" / "home"
    done = init(python, folder)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"made  {folder}/config.yaml\n" in done.stdout.decode()
    first = first_backend(Machine.here())
    assert read_config(folder / "config.yaml", ENVIRONMENT).memory.backend == first.backend
    assert ("found by words alone, for" in done.stdout.decode()) == bool(first.why)
    assert f"wintermute run --config {folder}/config.yaml" in done.stdout.decode()
    assert read_config(folder / "config.yaml", ENVIRONMENT).data_dir == folder / "data"
    prompts = folder / "data/prompts"
    folders = [path for path in prompts.rglob("*") if path.is_dir()]
    for path in (folder / "data", folder / "data/skills", prompts, *folders):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (folder / "config.yaml").stat().st_mode & 0o777 == 0o600
    kept = {name: (prompts / name).read_text() for name in shipped_prompts()}
    assert kept == shipped_prompts()
    assert sum(path.is_file() for path in prompts.rglob("*")) == len(kept)
    assert len(folders) == 2
    assert done.stdout.decode().count("\n") <= 10


def test_only_what_is_missing_is_added(tmp_path: Path, python: Interpreter) -> None:
    init(python, tmp_path)
    first = next(iter(shipped_prompts()))
    (tmp_path / "config.yaml").write_text("mine")
    (tmp_path / "data/prompts" / first).write_text("mine")
    (tmp_path / "data/skills").rmdir()
    shutil.rmtree(tmp_path / "data/prompts/runtime")
    done = init(python, tmp_path, "--json")
    new = ("data/skills", "data/prompts/runtime", "data/prompts/runtime/default.md")
    assert json.loads(done.stdout) == {"made": [str(tmp_path / name) for name in new]}
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert (tmp_path / "data/prompts" / first).read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, python: Interpreter) -> None:
    """L-082."""
    (tmp_path / "file").touch()
    done = init(python, tmp_path / "file" / "folder")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"wintermute: cannot write {tmp_path}/file/folder: Not a directory: choose a folder of your"
        " own\n"
    )


def test_the_zone_is_the_machines_unless_it_is_named(tmp_path: Path, python: Interpreter) -> None:
    """F-051: `init` writes and shows it, what leaves it out has it, `check` warns of another."""
    env = {"PATH": os.defpath, "TZ": "America/New_York", **ENVIRONMENT}
    done = python.run("init", str(tmp_path), cwd=tmp_path, env=env)
    assert "Time zone: America/New_York, as this machine has it, where" in done.stdout.decode()
    path = tmp_path / "config.yaml"
    written = path.read_text()
    assert "\ntimezone: America/New_York  # " in written
    path.write_text(written.replace("timezone: America/New_York", ""))
    assert read_config(path, env).timezone == "America/New_York"
    path.write_text(written.replace("America/New_York", "Europe/Berlin"))
    told = python.run("check", cwd=tmp_path, env=env).stdout.decode()
    assert "warn  time zone: Europe/Berlin, where it" in told
    assert "; this machine is in America/New_York -> set timezone" in told


def test_without_a_terminal_options_answer(tmp_path: Path, python: Interpreter) -> None:
    """U-002: the same values give the same file, a server's name an address; a second run changes nothing."""
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text('ö "x" 😀\n')
    other.write_text("another")
    words = "--homeserver h.example --user @b:h.example --owner @o:h.example --no-input"
    words += f" --provider ollama --api-key-file {secret} --password-file"
    folders = (tmp_path / "one", tmp_path / "two", tmp_path / "two")
    for folder, file in zip(folders, (secret, secret, other), strict=True):
        done = init(python, folder, *words.split(), str(file))
        assert (done.returncode, done.stdout.count(b"\n") <= 10) == (0, True)
    first, second = ((folder / "config.yaml").read_text() for folder in folders[:2])
    assert (first == second, first.count("EDIT: "), first.count("\n") <= 40) == (True, 1, True)
    config = read_config(folders[1] / "config.yaml", {})
    assert (config.matrix.homeserver, config.matrix.owner) == ("https://h.example", "@o:h.example")
    backend = config.llm.backends["ollama"]
    assert backend.base_url == PROVIDERS["ollama"].base_url
    assert backend.api_key == config.matrix.password == Secret('ö "x" 😀')
    assert init(python, tmp_path / "three", "--password-file", str(tmp_path)).returncode == 2
    for wrong in ("--owner ann", "--user @b", "--provider olama", "--homeserver http://"):
        done = init(python, tmp_path / "three", *wrong.split(), "--no-input")
        assert (done.returncode, b"write one such as" in done.stderr) == (2, True)
    assert not (tmp_path / "three").exists()
    init(python, tmp_path / "three", "--provider", "llama.cpp")
    assert [*read_config(tmp_path / "three/config.yaml", ENVIRONMENT).llm.backends] == ["llama.cpp"]


INTERRUPTED = """
import os, signal, sys
def hears(event, args):  # of a file that was made and is not noted yet
    if event == "open" and type(args[0]) is int and os.path.exists(sys.argv[2] + "/config.yaml"):
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
from wintermute.cli.main import cli
sys.addaudithook(hears)
cli()
"""


def test_ctrl_c_between_a_file_and_its_note_leaves_no_file(tmp_path: Path) -> None:
    """U-001."""
    words = (sys.executable, "-c", INTERRUPTED, "init", str(tmp_path / "home"), "--no-input")
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode, done.stderr[-9:], [*tmp_path.iterdir()]) == (1, b"Aborted!\n", [])


def test_docs_have_a_filled_example_for_each_provider() -> None:
    """U-001: with what starts it, or where its key comes from."""
    rows = (ROOT / "docs" / "models.md").read_text("utf-8").splitlines()
    for name, each in PROVIDERS.items():
        (row,) = (line for line in rows if f"| `{name}: {{" in line)
        assert each.base_url in row
        assert each.keys.removeprefix("https://") in row
        assert " ".join(each.start.split()[:2]) in row
