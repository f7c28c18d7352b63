"""Unusual values in torch's `SummaryWriter`, in wandb, and in our replacements."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter as TorchWriter

from tests.waiting import wait_until
from trieye.history.history import read_history
from trieye.integrations import opening, wandb
from trieye.integrations.tensorboard import SummaryWriter
from trieye.integrations.wandb.offline import records_in, values_of

LONG = "grüße " * 200_000
"""1.6 MB."""

on_gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture(autouse=True)
def ours(store_dir, monkeypatch, request):
    """Return the name of a separate run per test; all runs share one store, which is created once."""
    monkeypatch.chdir(store_dir)
    monkeypatch.setenv(opening.APP, "p")
    return opening.safe_name(request.node.name)


def tensors(device):
    values = {
        "plain": torch.tensor(2.0),
        "of a graph": torch.tensor(3.0, requires_grad=True) * 2,
        "one element": torch.tensor([[2.5]]),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "whole": torch.tensor(7),
        "view": torch.arange(6.0).reshape(2, 3).T[1, 1],
    }
    return {name: value.to(device) for name, value in values.items()}


SCALARS = {
    "float16": np.float16(1.5),
    "float32": np.float32(0.1),
    "int64": np.int64(-3),
    "uint8": np.uint8(255),
    "bool": np.True_,
    "0-d": np.array(4.0),
    "array of one": np.array([5.0]),
}
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
NOT_FINITE |= {"of numpy": np.float32("nan"), "of torch": torch.tensor(math.nan)}
UNICODE = {"ünï/код 1": 1.0, "手/😀": 2.0, "a b:c*d?": 3.0, "/x": 4.0}


def points(name):
    table = read_history(Path(".trieye_data/p/runs") / name)
    return list(zip(*(table[column].to_pylist() for column in ("metric", "step", "value")), strict=True))


def in_artifacts(end):
    """Return the text of the only MLflow artifact whose path ends with `end`."""
    (path,) = Path(".trieye_data/p/mlruns").glob(f"**/{end}")
    return path.read_text()


# SummaryWriter


def scalars_shown(directory):
    events = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("device", ["cpu", on_gpu])
def test_the_writer_shows_the_numbers_of_torch_and_counts_nonfinite_values(ours, device):
    numbers = {**tensors(device), **SCALARS, **UNICODE}
    for writer in (TorchWriter(f"theirs/{ours}"), SummaryWriter(f"runs/{ours}")):
        with writer:
            for name, value in (numbers | NOT_FINITE).items():
                writer.add_scalar(name, value, 1)
    shown, theirs = scalars_shown(f"runs/{ours}"), scalars_shown(f"theirs/{ours}")
    assert shown["trieye/dropped/non_finite"][-1][1] == len(NOT_FINITE)
    expected = {name: points for name, points in theirs.items() if name not in NOT_FINITE}
    assert {name: points for name, points in shown.items() if not name.startswith("trieye/")} == expected
    assert len(expected) == len(numbers)


def test_the_writer_accepts_steps_of_any_order_and_type(ours):
    steps = [5, np.int64(1), torch.tensor(3), 3.0, -2, None, 5]
    for writer in (TorchWriter(f"theirs/{ours}"), SummaryWriter(f"runs/{ours}")):
        with writer:
            for number, step in enumerate(steps):
                writer.add_scalar("a", number, step)
    assert sorted(scalars_shown(f"runs/{ours}")["a"]) == sorted(scalars_shown(f"theirs/{ours}")["a"])
    assert sorted(points(ours)) == sorted(("a", *point) for point in scalars_shown(f"theirs/{ours}")["a"])


def test_the_writer_rejects_nested_scalars_and_flattens_nested_parameters(ours):
    with TorchWriter(f"theirs/{ours}") as writer, pytest.raises(NotImplementedError):
        writer.add_scalars("a", {"b": {"c": 1.0}}, 1)
    with TorchWriter(f"theirs/{ours}") as writer, pytest.raises(ValueError, match="value should be one of"):
        writer.add_hparams({"net": {"size": 3}}, {"a": 1.0})
    with SummaryWriter(f"runs/{ours}") as writer:
        with pytest.raises(TypeError, match="'a/b'"):
            writer.add_scalars("a", {"b": {"c": 1.0}}, 1)
        writer.add_hparams({"net": {"size": 3}, "none": None, "of": torch.tensor(2.0)}, {"a": torch.tensor(1.0)})
    assert points(ours) == [("a", 0, 1.0)]


@pytest.mark.long
@pytest.mark.usefixtures("mlflow")
def test_the_writer_accepts_texts_above_one_megabyte_and_lone_surrogates(ours):
    with SummaryWriter(f"runs/{ours}") as writer:
        writer.add_text("surrogate", "half of a pair: \ud83d", 2)  # the original raises an error
        writer.add_text("t", LONG, 3)
        writer.add_text("exact", "x" * 2**20, 3)
    assert in_artifacts("media/text/t/text_summary/3.txt") == LONG
    events = EventAccumulator(f"runs/{ours}", size_guidance={"tensors": 0})
    events.Reload()
    (text,) = events.Tensors("t/text_summary")
    text = text.tensor_proto.string_val[0].decode()
    assert text.startswith("grüße grüße")
    assert "1,200,000 characters" in text
    (exact,) = events.Tensors("exact/text_summary")
    assert len(exact.tensor_proto.string_val[0]) == 2**20


def test_the_writer_accepts_histograms_that_the_original_rejects(ours):
    with TorchWriter(f"theirs/{ours}") as writer, pytest.raises(ValueError, match="empty"):
        writer.add_histogram("a", torch.tensor([1e30, -1e30]), 1)
    with SummaryWriter(f"runs/{ours}") as writer:
        writer.add_histogram("a", torch.tensor([1e30, -1e30]), 1)
        writer.add_histogram("b", [1.0, math.nan, math.inf], 1)
    assert len(EventAccumulator(f"runs/{ours}").Reload().Tags()["tensors"]) == 2


# wandb


@pytest.fixture(scope="module")
def rows_of_theirs(tmp_path_factory):
    """Return the values that wandb itself stores for all logged rows, by key."""
    real = pytest.importorskip("wandb")
    store_dir = tmp_path_factory.mktemp("theirs")
    quiet = real.Settings(silent=True)
    with real.init(project="p", id="theirs", mode="offline", dir=str(store_dir), settings=quiet) as run:
        numbers = {**tensors("cpu"), **SCALARS, **UNICODE, **NESTED}
        for key, row in {"numbers": numbers, "not finite": NOT_FINITE, "texts": {"t": LONG, **OTHER}}.items():
            run.log({"key": key, **row})
    (path,) = store_dir.glob("wandb/offline-run-*/*.wandb")
    wait_until(lambda: any(record.HasField("exit") for record in records_in(path)))
    rows = [values_of(record.history.item) for record in records_in(path) if record.HasField("history")]
    return {row.pop("key"): {name: value for name, value in row.items() if name[0] != "_"} for row in rows}


NESTED = {"a": {"b": {"c": 1, "d": 2.0}, "e": 3}, "of": {1: 4.0, None: 5.0}, "empty": {}}
OTHER = {"ragged": [[1], [2, 3]], "texts": ["a", "b"], "np text": np.str_("x"), "complex": np.complex64(1j), "set": {1}}


def logged(ours, row):
    """Log a row with ours, and return its numbers."""
    with wandb.init(project="p", id=ours):
        wandb.log(row)
    return {name: value for name, _, value in points(ours) if not name.startswith("trieye/")}


@pytest.mark.parametrize("device", ["cpu", on_gpu])
def test_wandb_logs_the_numbers_of_wandb_and_flattens_dicts(ours, rows_of_theirs, device):
    nested = {"a.b.c": 1.0, "a.b.d": 2.0, "a.e": 3.0, "of.1": 4.0, "of.None": 5.0}
    assert rows_of_theirs["numbers"]["a"] == {"b": {"c": 1, "d": 2}, "e": 3}
    expected = {key: value for key, value in rows_of_theirs["numbers"].items() if key not in NESTED} | nested
    row = {**tensors(device), **SCALARS, **UNICODE, **NESTED, "surrogate": "half of a pair: \ud83d"}
    unusual = {"none": None, "no items": [], "one item": [7.0], "false": False}
    assert logged(ours, row | unusual) == pytest.approx(expected | {"bool": 1.0, "one item": 7.0, "false": 0.0})


def test_wandb_counts_nonfinite_values_and_shows_the_others(ours, rows_of_theirs):
    assert len(rows_of_theirs["not finite"]) == 5
    with wandb.init(project="p", id=ours) as run:
        run.define_metric("least", summary="min")
        for value in (3.0, math.nan, 1.0, math.nan, 2.0):
            wandb.log({"least": value, "other": 1})
        wandb.log(NOT_FINITE)
        assert run.summary.least == 1.0
    assert [value for name, _, value in points(ours) if name == "least"] == [3.0, 1.0, 2.0]
    assert [step for name, step, _ in points(ours) if name == "other"] == [0, 1, 2, 3, 4]
    assert [value for name, _, value in points(ours) if name == "trieye/dropped/non_finite"][-1] == 7.0


def test_masked_values_are_nan(ours):
    with wandb.init(project="p", id=ours), SummaryWriter("runs/masked") as writer:
        wandb.log({"a": np.ma.masked, "b": 1.0})
        writer.add_scalar("a", np.ma.masked, 1)
        writer.add_scalar("a", np.ma.array([2.0]), 2)
    assert [row for row in points(ours) if row[0] in {"a", "b"}] == [("b", 0, 1.0)]
    assert [row for row in points("masked") if row[0] == "a"] == [("a", 2, 2.0)]


@pytest.mark.usefixtures("mlflow")
def test_wandb_logs_other_values_as_text(ours, rows_of_theirs):
    assert rows_of_theirs["texts"].keys() == {"t", *OTHER}
    assert rows_of_theirs["texts"]["t"] == LONG
    assert logged(ours, {**OTHER, "object": object(), "t": LONG, "a": 1.0}) == {"a": 1.0}
    texts = {path.parent.name for path in Path(".trieye_data/p/mlruns").rglob("*.md")}
    assert {"ragged", "texts", "np text", "complex", "set", "object"} <= texts
    assert in_artifacts("media/text/t/0.txt") == LONG


def test_wandb_rejects_noninteger_steps(ours):
    with wandb.init(project="p", id=ours) as run:
        for step in (np.int64(4), torch.tensor(5), 3):
            wandb.log({"a": 1.0}, step=step)
        assert run.step == 5
        for step in (1.5, "7"):
            with pytest.raises(TypeError, match="integer"):
                wandb.log({"a": 2.0}, step=step)
    assert [row[:2] for row in points(ours)] == [("a", 4), ("a", 5)]


@pytest.mark.usefixtures("mlflow")
def test_wandb_copies_values_when_they_are_logged(ours):
    from matplotlib import pyplot as plt

    total, counts, frame = torch.zeros(()), np.zeros(1), np.zeros((4, 4, 3), np.uint8)
    file = Path("passing")
    with wandb.init(project="p", id=ours):
        for step in range(3):
            plt.plot([0, step])
            file.write_text(f"held {step}")
            total += 1.0
            counts[0] = step
            pictures = {"frame": wandb.Image(frame), "figure": wandb.Image(plt), "file": wandb.Image(file)}
            wandb.log({"total": total, "counts": counts, **pictures}, step=step)
            frame += 1
            plt.close()
            file.unlink()
    assert points(ours) == [
        (name, step, value) for step in range(3) for name, value in (("total", step + 1.0), ("counts", float(step)))
    ]
    colors = {path.read_bytes() for path in Path(".trieye_data/p/mlruns").rglob("frame/*.png")}
    assert len(colors) == 3
    assert [in_artifacts(f"media/images/file/{step}/passing") for step in range(3)] == ["held 0", "held 1", "held 2"]


def test_a_rejected_row_changes_nothing(ours):
    with wandb.init(project="p", id=ours):
        wandb.log({"a": 1.0}, step=3)
        for row in ({"a": 2.0, "b": 10**400}, {"a": 2.0, 1: 2.0}, {"a": 2.0, "": 1.0}):
            with pytest.raises((TypeError, ValueError)):
                wandb.log(row, step=3)
        wandb.log({"c": 1.0}, step=3)
    assert sorted(points(ours)) == [("a", 3, 1.0), ("c", 3, 1.0)]
