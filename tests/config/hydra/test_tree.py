"""The config as a tree."""

import pytest

from trieye.config import MetricConfig, StatsConfig, TrieyeConfig
from trieye.config.hydra.compose import print_tree


def test_the_tree_shows_every_key_with_its_value(capsys: pytest.CaptureFixture[str]):
    config = TrieyeConfig(
        run_name="r",
        tags={"token": "s3cret", "note": "[red]plain[/red]"},
        stats=StatsConfig(metrics=[MetricConfig(name="a/b")]),
    )
    print_tree(config)
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "TrieyeConfig"
    assert "├── token = '***'" in lines
    assert "├── seed = 0" in lines
    assert "└── note = '[red]plain[/red]'" in lines
    assert "└── a/b" in lines
    assert "├── kind = 'ray'" in lines
