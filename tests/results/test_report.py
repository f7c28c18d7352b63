"""The report page: figures, tables of runs, self-containment, and rendering in a browser."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs_of import make_run, make_sweep
from tensorboardX import SummaryWriter

from trieye.cli import main
from trieye.results import RunGroups, ScoreDefinition, load
from trieye.results.report import MAX_BYTES, Comparison, Report
from trieye.results.statistics import aggregate, difference, probability_of_improvement

SCORES = {"dqn": [5.0, 9.0], "ppo": [10.0, 14.0, 11.0, 8.0]}
NASTY = '<script>alert(1)</script> "q" \'&amp; $a_$b_'
LAST = ScoreDefinition("eval/return", steps=1)
VOID = {"meta", "br", "img", "link", "input", "hr", "base"}


class Page(HTMLParser):
    """A parsed page with balanced tags: tables by id, each a list of rows of cells, text, and tags."""

    def __init__(self, text):
        super().__init__()
        self.size, self.tables, self.tags, self.text_parts, self.open = len(text.encode()), {}, [], [], []
        self._cell = None
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(attrs.get("id", f"table-{len(self.tables)}"), [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self._cell = {**attrs, "text": ""}
            self.rows[-1].append(self._cell)
        elif tag == "span" and self._cell is not None:
            self._cell |= {key: value for key, value in attrs.items() if key.startswith("data-")}

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in {"td", "th"}:
            self._cell = None

    def handle_data(self, data):
        if self.open and self.open[-1] in {"script", "style"}:
            return
        self.text_parts.append(data)
        if self._cell is not None:
            self._cell["text"] += data

    @property
    def text(self):
        return " ".join(" ".join(self.text_parts).split())

    def texts(self, name):
        return [[cell["text"].strip() for cell in row] for row in self.tables[name]]


def assert_estimate(cell, estimate):
    assert float(cell["data-v"]) == estimate.value
    assert (cell["data-low"], cell["data-high"]) == (str(estimate.low), str(estimate.high))


def comparison_in(directory, **options):
    created = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    header = {"title": "a title", "sources": ["here"], "command": "trieye results report here"}
    return Comparison(**header, created=created, working_dir=directory, directory=directory, **options)


def render(results, by=(), *, scoring=LAST, directory=Path("/"), **options):
    groups = RunGroups.of(results, by, options.get("task"))
    return Report(groups, scoring, comparison_in(directory, by=by, **options)).html()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a directory with a sweep of two algorithms and four seeds; one job failed, and one never started."""
    root, run_dirs = tmp_path_factory.mktemp("root"), {}
    for index, (algo, seed) in enumerate((algo, seed) for algo in ("dqn", "ppo") for seed in range(4)):
        if (algo, seed) != ("dqn", 3):
            score = (SCORES[algo] + [99.0])[seed]
            settings = {"every": 100, "seed": seed, "agent": {"algo": algo}}
            run_dirs[index] = make_run(root, f"{algo}{seed}", np.linspace(0.0, score, 11), **settings)
    edit_json(run_dirs[2] / "run.json", status="FAILED")
    axes, errors = {"agent.algo": ("dqn", "ppo"), "seed": "0123"}, {2: "ValueError: <b>loss</b> is nan"}
    make_sweep(root / "sweep", axes, run_dirs, errors=errors)
    return root


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture(scope="module")
def report_path(root, tmp_path_factory):
    """Return the path of the report that `trieye results report` writes for the sweep."""
    path, stdout = tmp_path_factory.mktemp("written") / "out/report.html", io.StringIO()
    arguments = ["results", "report", "sweep", "--by", "algo", "--last", "1", "-o", str(path), "--title", NASTY]
    with contextlib.chdir(root), contextlib.redirect_stdout(stdout):
        assert main(arguments) == 0
    assert stdout.getvalue() == f"written to {path}\n"
    assert list(path.parent.iterdir()) == [path]
    return path


@pytest.mark.long
def test_the_figures_table_has_the_estimates_and_counts_missing_runs(report_path):
    page = Page(report_path.read_text())
    headers, *rows = page.tables["figures"]
    titles = ["group", "runs", "missing", "iqm, 95% CI", "median", "mean", "std"]
    assert [header["text"] for header in headers] == titles
    assert [row[0]["text"] for row in rows] == ["ppo", "dqn"]  # best first
    for name, runs, missing, estimate, median, mean, std in rows:
        scores = np.array(SCORES[name["text"]])
        assert_estimate(estimate, aggregate(scores, "iqm"))
        assert [float(cell["data-v"]) for cell in (median, mean, std)] == [
            aggregate(scores, "run_median").value, aggregate(scores, "mean").value, scores.std(ddof=1)
        ]  # fmt: skip
        assert (runs["text"], missing["text"]) == (str(len(scores)), str(4 - len(scores)))
        assert ("warn" in missing["class"]) == (len(scores) < 4)


@pytest.mark.long
def test_each_pair_lists_the_better_group_first(report_path):
    (row,) = Page(report_path.read_text()).tables["pairs"][1:]
    assert [cell["text"] for cell in row[:4]] == ["ppo", "dqn", "4 + 2", "2"]
    padded = [np.array([*SCORES[name], np.nan, np.nan][:4]) for name in ("ppo", "dqn")]
    assert_estimate(row[4], probability_of_improvement(*padded))
    assert_estimate(row[5], difference(*padded))


@pytest.mark.long
def test_min_mode_lists_the_lowest_group_first(root):
    page = Page(render(load(root / "sweep"), ["algo"], mode="min", stat="mean", confidence=0.5))
    assert [row[0] for row in page.texts("figures")] == ["group", "dqn", "ppo"]
    assert_estimate(page.tables["figures"][1][3], aggregate(SCORES["dqn"], "mean", confidence=0.5))
    probability = page.tables["pairs"][1][4]
    assert_estimate(probability, probability_of_improvement([-5.0, -9.0], [-10.0, -14.0, -11.0, -8.0], confidence=0.5))


def test_each_task_has_a_table(tmp_path):
    for lr in (0.1, 0.2):
        for seed, score in enumerate([3.0, 5.0]):
            make_run(tmp_path, f"r{lr}{seed}", [score / lr], seed=seed, agent={"lr": lr})
    page = Page(render(load(tmp_path), ["algo"], task="lr"))
    assert "algo=" not in page.text
    scores_by_task = np.array([[30.0, 15.0], [50.0, 25.0]])
    assert_estimate(page.tables["figures"][1][3], aggregate(scores_by_task))
    assert "std" not in page.texts("figures")[0]
    for column, task in enumerate(("0.1", "0.2")):
        assert_estimate(page.tables[f"task-{column + 1}"][1][3], aggregate(scores_by_task[:, column]))
        assert {row[2] for row in page.texts("all-runs")[1:]} == {"0.1", "0.2"}, task
    assert "1 parameter varies within groups agent.lr 0.1, 0.2" in page.text


def test_sensitivity_is_drawn_only_if_several_parameters_vary(tmp_path):
    for algo, lr, layers in (("ppo", 0.1, "[64]"), ("ppo", 0.2, "[]"), ("dqn", 0.1, "[]"), ("dqn", 0.2, "[64]")):
        run_dir = make_run(tmp_path, f"{algo}{lr}", [lr + len(algo)], agent={"algo": algo, "lr": lr})
        edit_json(run_dir / "run.json", params={"layers": layers})
    results = load(tmp_path)
    labels = [attrs["aria-label"] for tag, attrs in Page(render(results)).tags if attrs.get("role") == "img"]
    assert "eval/return for each value of agent.lr: 0.1, 0.2" in labels
    assert "eval/return for each value of agent.algo: dqn, ppo" in labels
    assert "eval/return for each value of layers: [64], []" in labels
    assert "Sensitivity" not in render(results.where(lr=0.1))  # the groups already show a single parameter


def test_runs_are_listed_with_scores_and_links_to_their_directories(report_path, root):
    page = Page(report_path.read_text())
    rows = page.texts("all-runs")[1:]
    values = {f"{algo}{seed}": f"{score:g}" for algo, scores in SCORES.items() for seed, score in enumerate(scores)}
    assert {row[0]: row[5] for row in rows} == {**values, "dqn2": "-"}
    failed = next(row for row in rows if row[0] == "dqn2")
    assert failed[1:5] == ["dqn", "2", "failed", "1,000"]
    assert failed[8] == "trieye ui app/runs/dqn2"
    hrefs = {attrs["href"] for tag, attrs in page.tags if tag == "a" and "runs/" in attrs["href"]}
    assert len(hrefs) == 7
    assert {Path(os.path.normpath(report_path.parent / href)) for href in hrefs} == set((root / "app/runs").iterdir())


def test_paths_are_shortened_only_below_the_working_directory():
    command = "trieye results report /a/b -o '/a/c d.html' --root=/a/e /b/a/c"
    assert comparison_in(Path("/")).shown(command) == command
    assert comparison_in(Path("/a")).shown(command) == "trieye results report b -o 'c d.html' --root=e /b/a/c"


def test_incomplete_jobs_are_listed_with_the_command_that_runs_them(report_path):
    page = Page(report_path.read_text())
    assert "7 in 2 groups; 2 not completed ; 2 problems" in page.text
    assert "2 of 8 jobs of sweep are not completed. To run them: trieye sweep relaunch sweep" in page.text
    jobs = next(rows for name, rows in page.tables.items() if name.startswith("table-"))
    assert [[cell["text"].strip() for cell in row] for row in jobs[1:]] == [
        ["2", "failed", "agent.algo=dqn seed=2", "ValueError: <b>loss</b> is nan"],
        ["3", "missing", "agent.algo=dqn seed=3", ""],
    ]
    assert "app/runs/dqn2: FAILED, last eval/return at step 1000: not scored without --include-unfinished" in page.text


def test_a_report_of_only_an_unfinished_run_has_its_commands_and_curve_but_no_estimate_or_password(tmp_path):
    run_dir = make_run(tmp_path, "first one", [1.0, 2.0], seed=0)
    edit_json(run_dir / "run.json", status="KILLED", mlflow_run_id="abc")
    edit_json(run_dir / "configs.json", persistence={"mlflow_tracking_uri": "http://me:hunter22@server:5000/"})
    text = render(load(tmp_path), directory=tmp_path)
    page = Page(text)
    assert "incomplete trieye rerun 'app/runs/first one'" in page.text
    assert "Learning curves" in page.text
    assert page.texts("figures")[1][1:4] == ["0", "1", "- no CI"]
    assert "KILLED, last eval" in page.text
    assert "http://me:***@server:5000/#/runs/abc" in [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert "hunter22" not in text


def test_the_config_section_separates_differing_from_equal_parameters(report_path):
    page = Page(report_path.read_text())
    assert page.texts("differences") == [["parameter", "dqn", "ppo"], ["agent.algo", "dqn", "ppo"]]
    assert "agent.lr 0.001" in page.text


@pytest.mark.long
def test_provenance_counts_commits_and_machines_and_lists_differing_packages(root, tmp_path):
    copy = shutil.copytree(root / "app", tmp_path / "app")
    paths = sorted(copy.glob("runs/*/provenance/attempt-1.json"))
    assert len(paths) == 7
    packages = json.loads(paths[0].read_text())["packages"]
    commit = {"directory": "/x", "sha": "0123456789abcdef", "branch": "main", "remote": "", "untracked": ["a", "b"]}
    edit_json(paths[0], packages={**packages, "numpy": "1.0"}, commit={**commit, "is_dirty": True})
    paths[1].unlink()
    edit_json(copy / "runs/dqn1/run.json", attempt=3)
    page = Page(render(load(copy), ["algo"]))
    assert "1 of 7 runs have no provenance: commit, packages and machine were not recorded" in page.text
    assert page.texts("packages")[1:] == [["numpy", f"1.0 (1 run), {packages['numpy']} (5 runs)"]]
    states = {row[1]: (row[0], row[4]) for row in page.texts("commits")[1:]}
    assert states["0123456789ab"] == ("1", "uncommitted changes, 2 untracked files")
    assert [row[0] for row in page.texts("machines")[1:]] == ["6"]
    assert "1 run was restarted" in page.text
    assert {row[0]: row[7] for row in page.texts("all-runs")[1:]}["dqn1"] == "3"


def test_markup_formulas_and_non_ascii_in_names_of_foreign_runs_are_plain_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, score in ((f"{NASTY.replace('/', '|')}_1", 1.0), ("_hidden 中文 \x1b_1", 2.0), ("\udc80_1", 3.0)):
        writer = SummaryWriter(str(tmp_path / name))
        for step in range(4):
            writer.add_scalar("reward", score * step, step, walltime=1e9 + step)
        writer.close()
    text = render(load("."), scoring=ScoreDefinition("reward")).encode("utf-8", "backslashreplace").decode()
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "alert(1)" in page.text
    assert {row[5] for row in page.texts("all-runs")[1:]} == {"3", "6", "9"}
    assert {row[6] for row in page.texts("all-runs")[1:]} == {"0:00:03"}
    legend = re.findall(r"<text[^>]*>([^<]*\(n=1\))</text>", text)
    assert any("$a_$b_" in name for name in legend)  # not parsed as a formula
    assert any("_hidden 中文" in name for name in legend)
    assert f'href="{tmp_path.relative_to("/")}/%80_1/"' in text


def test_the_page_loads_no_external_resources_and_permits_only_its_script(report_path):
    text = report_path.read_text()
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert not any("src" in attrs or attrs.get("href", "").startswith(("http", "//")) for _, attrs in page.tags)
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert not re.search(r"@import|url\((?!#)|https?:", text)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "<title>&lt;script&gt;" in text


def test_ids_are_unique_and_references_resolve(report_path):
    text = report_path.read_text()
    ids = [attrs["id"] for _, attrs in Page(text).tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


def test_table_headers_have_scopes_and_figures_have_labels(report_path):
    page = Page(report_path.read_text())
    headers = [attrs for tag, attrs in page.tags if tag == "th"]
    assert all(attrs.get("scope") in {"row", "col"} for attrs in headers)
    labels = [attrs["aria-label"] for _, attrs in page.tags if attrs.get("role") == "img"]
    assert len(labels) == 3
    assert all("dqn, ppo" in label or "ppo, dqn" in label for label in labels)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


def contrast(first, second):
    def luminance(color):
        parts = np.array([int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def themes(text):
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", part)) for part in text.split("@media screen")[:2])
    assert light.keys() == dark.keys()
    return light, dark


def test_colors_have_sufficient_contrast_in_both_themes(report_path):
    for colors in themes(report_path.read_text()):
        for page in ("page", "panel"):
            assert min(contrast(colors[name], colors[page]) for name in ("ink", "quiet", "link", "warn")) >= 4.5
        series = [color for name, color in colors.items() if name.startswith("series")]
        assert min(contrast(color, colors["page"]) for color in series) >= 3
        assert len(set(series)) == 7


def test_figures_inherit_colors_and_fonts_from_the_page(report_path):
    svg = "".join(re.findall(r"<svg.*?</svg>", report_path.read_text(), re.DOTALL))
    assert "var(--series-1)" in svg
    assert "currentColor" in svg
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#b0b0b0"}  # the grid
    assert "font-family" not in svg
    assert "<style" not in svg


@pytest.mark.long
def test_the_same_runs_produce_the_same_page(root):
    first, second = (render(load(root / "sweep"), ["algo"]) for _ in range(2))
    assert first == second
    assert "2026-01-02 03:04 UTC" in first


@pytest.mark.long
def test_a_report_of_300_runs_takes_seconds_and_less_than_a_megabyte(root, tmp_path):
    for number in range(300):
        source = root / f"app/runs/ppo{number % 4}"
        copy = tmp_path / f"app/runs/run_{number}"
        copy.mkdir(parents=True)
        for part in ("run.json", "configs.json", "history", "journal.db", "provenance"):
            (shutil.copytree if (source / part).is_dir() else shutil.copy)(source / part, copy / part)
        edit_json(copy / "run.json", run_id=f"id{number}", run_name=copy.name)
        edit_json(copy / "configs.json", seed=number // 30, agent={"algo": "ppo", "lr": 0.001 * (1 + number % 30)})
    start = time.monotonic()
    page = Page(render(load(tmp_path)))
    elapsed_s = time.monotonic() - start
    assert page.size < MAX_BYTES
    assert elapsed_s < 30  # 4 s on two idle cores
    assert len(page.texts("all-runs")) == 301
    assert len(page.texts("figures")) == 31
    assert len(page.texts("pairs")) == 1 + 45
    assert "The 390 pairs with groups below the best 10 are omitted" in page.text
    assert "plotted: the best 10 of 30 groups" in page.text


def test_an_oversized_page_is_shortened_and_counts_the_omitted_problems(root):
    results = load(root / "sweep")
    for number in range(2_000):
        results._cache.problems.note(f"/place/{number}", "x" * 1_000)
    page = Page(render(results, ["algo"]))
    assert page.size < MAX_BYTES
    assert re.search(r"and 1,?7\d\d more, omitted from this page", page.text)


def test_a_report_path_below_a_file_is_an_error_and_leaves_the_file_unchanged(root, tmp_path, capfd):
    (tmp_path / "file").write_text("old")
    assert main(["results", "report", str(root / "app/runs/ppo0"), "-o", str(tmp_path / "file/report.html")]) == 2
    assert "cannot be written" in capfd.readouterr().err
    assert (tmp_path / "file").read_text() == "old"


def chromium_path():
    installed = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    playwright_paths = sorted(Path.home().glob(".cache/ms-playwright/chromium*/chrome-*/*chrom*"))
    return installed or next(
        (str(path) for path in playwright_paths if path.is_file() and os.access(path, os.X_OK)), None
    )


@pytest.fixture
def chromium(tmp_path):
    """Return a function that renders a page in Chromium without console errors, and returns its output."""
    program = chromium_path()
    if program is None:
        pytest.skip("Chromium is not installed: install chromium, google-chrome or Playwright's Chromium")

    def run_chromium(*arguments):
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--enable-logging=stderr", "--window-size=1200,3000", f"--user-data-dir={tmp_path / 'profile'}"]
        command += map(str, arguments)
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        return process.stdout, [line for line in process.stderr.splitlines() if "CONSOLE" in line]

    return run_chromium


@pytest.mark.parametrize(("theme", "flags"), [("light", []), ("dark", ["--force-dark-mode"])])
def test_a_browser_renders_the_page_in_both_themes(theme, flags, chromium, report_path, tmp_path):
    _, output = chromium(*flags, f"--screenshot={tmp_path / 'page.png'}", report_path.as_uri())
    assert output == []
    colors = themes(report_path.read_text())[theme == "dark"]
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("RGB"), np.int16)

    def num_pixels(name):
        color = [int(colors[name][start : start + 2], 16) for start in (1, 3, 5)]
        return int((np.abs(pixels - color).max(axis=-1) <= 2).sum())

    assert num_pixels("page") > 0.5 * pixels.shape[0] * pixels.shape[1]
    for name in ("ink", "warn", "series-0", "series-1"):
        assert num_pixels(name) > 200, name


def test_a_click_sorts_a_table_and_a_second_click_reverses_the_order(chromium, report_path, tmp_path):
    text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", report_path.read_text())
    clicks = """<script>
      const rows = (name) => [...document.getElementById(name).tBodies[0].rows];
      const cells = (name, column) => rows(name).map((row) => row.cells[column].textContent);
      const click = (name, column) => document.querySelectorAll(`#${name} thead button`)[column].click();
      const state = {};
      click("all-runs", 5); state.up = cells("all-runs", 5);
      click("all-runs", 5); state.down = cells("all-runs", 5);
      state.says = document.querySelectorAll("#all-runs thead th")[5].getAttribute("aria-sort");
      click("all-runs", 0); state.names = cells("all-runs", 0);
      document.title = JSON.stringify(state);
    </script></body>"""
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", clicks))
    dom, output = chromium("--dump-dom", copy.as_uri())
    assert output == []
    state = json.loads(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1].replace("&amp;", "&"))
    assert state == {
        "up": ["5", "8", "9", "10", "11", "14", "-"],  # numeric order; missing values are last in both directions
        "down": ["14", "11", "10", "9", "8", "5", "-"],
        "says": "descending",
        "names": ["dqn0", "dqn1", "dqn2", "ppo0", "ppo1", "ppo2", "ppo3"],
    }


def test_a_browser_runs_only_the_script_of_the_page(chromium, report_path, tmp_path):
    copy = tmp_path / "copy.html"
    copy.write_text(report_path.read_text().replace("</body>", "<script>document.title = 'bad'</script></body>"))
    dom, output = chromium("--dump-dom", copy.as_uri())
    assert "<title>bad</title>" not in dom
    assert dom.count('<button type="button">') > 10
    assert any("Content Security Policy" in line for line in output)
