import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trieye
from trieye.cli import COMMANDS, main
from trieye.renames import COMMANDS as RENAMED
from trieye.renames import OPTIONS

HELP = """
import contextlib, sys
from trieye.cli import main
for command in {commands}:
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
print("loaded", [name for name in {heavy} if name in sys.modules])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        ([[], *([name] for name in COMMANDS if name != "convert")], ["pydantic", "numpy", "rich", "cookiecutter"]),
        (
            [["convert"]],
            ["hydra", "mlflow", "ray", "tensorboard", "torch"],
        ),  # used once, so pydantic and NumPy are acceptable
    ],
    ids=["commands", "convert"],
)
def test_help_imports_no_slow_packages(commands, heavy):
    code = HELP.format(commands=commands, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("usage: trieye") == len(commands)
    assert done.stdout.rstrip().endswith("loaded []")


def test_the_help_of_a_command_describes_it_and_shows_examples(command):
    for name in COMMANDS:
        usage, description, *_, examples = command.output(name, "--help").split("\n\n")
        assert usage.startswith(f"usage: trieye {name} [-h] ")
        assert description.endswith("."), name
        assert re.search(rf"Examples:\n  trieye {name}( |$)", examples, re.MULTILINE), name


def test_a_deleted_working_directory_is_reported(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "the working directory was deleted; change to another one" in command.error("runs", code=1)


def test_version_and_the_bare_command_print_to_stdout(command):
    assert command.output("--version") == "trieye 0.2.0\n"
    shown = command.output()
    assert all(f"\n    {name}" in shown for name in COMMANDS)


def test_an_unknown_command_action_or_option_exits_with_2_and_names_the_closest_one(command):
    for words, message in (
        ("nwe", r"'nwe'; did you mean 'new'\? \(choose from: new, runs, "),
        ("sweep stats", r"invalid choice: 'stats' \(choose from .*\); did you mean 'status'\?"),
        ("runs --statsu lost", r"unrecognized arguments: --statsu.*; did you mean '--status'\?"),
        ("sweep plan a=1,2 --sedes=3", r"unrecognized arguments: --sedes.*; did you mean '--seeds'\?"),
    ):
        assert re.search(message, command.error(*words.split()))


def test_a_name_outside_the_encoding_of_the_output_is_escaped(make_config, monkeypatch):
    with trieye.Run(make_config(run_name="größe")) as run:
        run.log("a", 1.0)
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii"))
    assert main(["watch", str(run.dir), "--once"]) == 0
    assert rb"gr\xf6\xdfe" in output.getvalue()


def test_output_to_a_full_disk_is_an_error_in_one_line(tmp_path, monkeypatch, capfd):
    (root := tmp_path / "root").mkdir()
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["runs", "--root", str(root)]) == 1
    assert capfd.readouterr().err == "error: cannot write the output: No space left on device\n"


def test_a_closed_pipe_causes_no_traceback(make_config, tmp_path, monkeypatch, capfd):
    with trieye.Run(make_config()):
        pass
    reader, writer = os.pipe()
    os.close(reader)
    words = ["runs", "--root", str(tmp_path / "root")]
    command = [sys.executable, "-c", "from trieye.cli import main; raise SystemExit(main())", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    capfd.readouterr()
    with os.fdopen(writer, "w") as pipe:  # closing it flushes the lines again, as an interpreter does at exit
        monkeypatch.setattr("sys.stdout", pipe)
        assert main([*words, "--json"]) == 1
    assert capfd.readouterr().err == ""


def test_a_renamed_action_or_option_exits_with_2_and_its_new_name(command):
    def arguments_of(text):
        program, *arguments = text.split()
        assert program == "trieye"
        return [*arguments[:1], "table", *arguments[1:]] if arguments[0] == "results" else arguments

    for rename in [*RENAMED.values(), *OPTIONS.values()]:
        err = command.error(*arguments_of(rename.old))
        old, now = (name.replace("trieye results", "trieye results table") for name in (rename.old, rename.new))
        assert err.endswith(f"error: {old} was renamed to {now}\n")
        new = arguments_of(rename.new)
        shown = command.output(*(word for word in new if word[0] != "-" and word != "min"), "--help")
        assert all(word in shown for word in new if word[0] == "-"), rename
        assert rename.old.split()[-1] + " " not in shown
