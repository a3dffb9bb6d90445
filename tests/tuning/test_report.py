"""Pictures of what a search saw."""

import itertools
from dataclasses import replace

import pytest
import synthetic
from fake_tools import LONG as PROBLEM
from fake_tools import FakeTools, session, workload

from flashgen.errors import EnvironmentProblem
from flashgen.runtime.config import Config
from flashgen.tuning import report as pictures
from flashgen.tuning.outcome import Entry
from flashgen.tuning.report import report
from flashgen.tuning.timing import Timing


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    tools = FakeTools(fails={Config(64, 64, 4, 3): "out of resources"})
    return session(tools, tmp_path / "cache" / "tuned", "default").tune(workload(PROBLEM), None)


def test_four_pictures_are_saved_and_are_no_blanks(outcome, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    paths = report(outcome, tmp_path / "report")
    assert [path.name.rsplit("-", 1)[1] for path in paths] == ["history.png", "space.png", "spread.png", "roofline.png"]
    for path in paths:
        pixels = image.imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 400 and 0.005 < (pixels < 0.9).any(axis=-1).mean() < 0.9


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_map_has_a_number_for_each_time_and_a_word_for_each_other_config():
    table = synthetic.table(*synthetic.TABLES["causal-d128-s2048"])
    shown = [text for text in texts(pictures.space(table)) if text]
    numbers = [float(text) for text in shown if text[0].isdigit()]
    assert len(numbers) == len(table.measured) and min(numbers) == 1.0
    assert shown.count("shared") == sum(1 for e in table.entries if e.dropped == "shared memory") > 0


@pytest.mark.parametrize("fields", [{"ping_pong": 1}, {"fuse_dq": 1, "delay_dq": 0}])
def test_titles_of_the_maps_panels_keep_to_their_panels(fields):
    configs = [Config(128, 128, 4, stages, "hopper", **fields) for stages in (2, 3, 4)]
    entries = tuple(Entry(config, Timing(100.0, 0.01, 10)) for config in configs)
    figure = pictures.space(pictures.Table(workload(PROBLEM), entries, None, {}, {}, ""))
    figure.canvas.draw()
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert len(titles) == 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(titles))


def test_the_history_ends_at_the_best_and_shows_failures(outcome):
    figure = pictures.history(pictures.Table.of(outcome))
    (line,) = figure.axes[0].lines
    best = line.get_ydata()
    assert list(best) == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(min(e.timing.median_us for e in outcome.entries if e.timing))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["best so far", "trial", "failed"]


def test_spread_shows_the_fastest_first():
    table = synthetic.table(*synthetic.TABLES["causal-d128-s2048"])
    axes = pictures.spread(table).axes[0]
    best = table.best.config
    first = axes.get_yticklabels()[0].get_text()
    assert first == best.label
    assert axes.yaxis_inverted() and axes.texts[0].get_text().startswith("best")


def test_the_roofline_tells_the_share_of_a_matrix_product():
    table = synthetic.table(*synthetic.TABLES["causal-d128-s8192"])
    share = table.work.share(table.best.timing.median_us)
    assert any(f"{share:.0%} of a matrix product" in text for text in texts(pictures.roofline(table, table.work)))


def test_where_no_pair_is_visible_there_is_no_roofline(outcome, tmp_path):
    idle = replace(outcome, work=replace(outcome.work, flops=0.0))
    assert [path.name.rsplit("-", 1)[1] for path in report(idle, tmp_path)] == [
        "history.png",
        "space.png",
        "spread.png",
    ]


def test_without_a_time_there_is_no_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    lost = session(FakeTools(fails={"all": "crashed"}), tmp_path / "tuned", "quick").tune(workload(PROBLEM), None)
    assert report(lost, tmp_path / "report") == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(outcome, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        report(outcome, tmp_path / "file")
