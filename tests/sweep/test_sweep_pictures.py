"""Pictures are made, whole, for every shape of data that a sweep brings."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedsim.report.compared_curves import Panel, _draw_panel, draw_compared
from fedsim.report.curves import draw_curves, rounds_under_attack
from fedsim.report.heatmaps import _range, draw_heatmap
from fedsim.report.triggers import draw_shares, draw_triggers, share_inside

PNG = b"\x89PNG"


def records(shift=0.0, attacked=(2, 3)):
    return [
        {
            "round": number,
            "metrics": {"test_accuracy": 0.5 + shift, "attack_success": 0.1 * number, "attack_floor": 0.05},
            **({"attack": {"malicious": [0]}} if number in attacked else {}),
        }
        for number in range(1, 6)
    ]


def is_picture(path):
    assert path.read_bytes().startswith(PNG)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_an_attacked_run_has_a_third_panel_and_a_shaded_window(tmp_path):
    runs = [records(), records(0.1)]
    assert rounds_under_attack(runs) == (2, 3)
    assert rounds_under_attack([records(attacked=())]) is None
    draw_curves(runs, tmp_path / "curves.png", "title")
    is_picture(tmp_path / "curves.png")


@pytest.mark.parametrize("panels", [1, 6])
def test_compared_curves(tmp_path, panels):
    lines = {f"variant {number}": [records(0.01 * seed) for seed in range(3)] for number in range(9)}
    drawn = [Panel(f"p{number}", lines, (2, 3), "attack_floor") for number in range(panels)]
    draw_compared(drawn, "attack_success", tmp_path / "curves.png", "title")
    is_picture(tmp_path / "curves.png")


def test_heat_map_with_a_missing_cell(tmp_path):
    values = np.array([[0.5, np.nan, 1.0]])
    texts = [["0.5", "failed", "1.0"]]
    path = tmp_path / "heat.png"
    draw_heatmap(values, texts, ["row"], ["a", "b", "a long label"], path, title="t")
    is_picture(path)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.2, 0.9], 0, 1),
        ([np.nan], 0, 1),
        ([-0.02, 0.9], 0, 1),
        ([-0.3, 0.1], -0.3, 0.3),
        ([2.0, 10.0], 2, 10),
        ([3.0, 3.0], 3, 4),
    ],
)
def test_colours_span_shares_changes_and_other_numbers(values, low, high):
    norm = _range(np.array(values))
    assert (norm.vmin, norm.vmax) == (low, high)


@pytest.mark.parametrize("shape", [(10, 3, 8, 8), (2, 1, 8, 8), (3, 8, 8)])
def test_triggers_on_colour_and_grey_samples(tmp_path, shape):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    patched = images.clone()
    patched[..., -2:, -2:] = 1
    draw_triggers(images, [("before", images), ("after", patched)], tmp_path / "triggers.png")
    is_picture(tmp_path / "triggers.png")
    with pytest.raises(ValueError, match="after: shape"):
        draw_triggers(images, [("after", patched[:1])], tmp_path / "other.png")


def test_share_of_an_update_inside_a_set():
    delta = torch.tensor([3.0, -1.0, 0.0, 4.0])
    inside = torch.tensor([True, True, False, False])
    assert share_inside(delta, inside) == pytest.approx((4 / 8, 10 / 26))
    with pytest.raises(ValueError, match="zero everywhere"):
        share_inside(torch.zeros(4), inside)


def test_shares_against_rounds(tmp_path):
    path = tmp_path / "shares.png"
    draw_shares([("literal", [1, 2], [0.4, 0.5])], path, size=0.05, window=(1, 2))
    is_picture(path)


@pytest.mark.parametrize(("metric", "values"), [("test_accuracy", (0.2, 0.6)), ("test_loss", (1.0, 3.0))])
def test_the_band_of_two_seeds_stays_in_the_frame(metric, values):
    """Student's factor for two seeds is 12.7, so that the interval is far wider than what was seen."""
    runs = [[{"round": at, "metrics": {metric: value}} for at in (1, 2, 3)] for value in values]
    axes = Figure().add_subplot()
    _draw_panel(axes, Panel("", {"a": runs}, None), metric, ["a"])
    low, high = axes.get_ylim()
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert low <= heights.min() < values[0]
    assert values[1] < heights.max() <= high
    assert high - low < 2.3 if metric == "test_loss" else (low, high) == (0, 1.02)


def test_the_frame_of_one_constant_line_has_a_height():
    runs = [[{"round": at, "metrics": {"test_loss": 0.0}} for at in (1, 2)]]
    axes = Figure().add_subplot()
    _draw_panel(axes, Panel("", {"a": runs}, None), "test_loss", ["a"])
    assert axes.get_ylim() == (-0.05, 0.05)
