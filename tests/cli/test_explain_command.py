"""`flashgen explain`."""

from __future__ import annotations

from pathlib import Path

from commands import Run


def test_explain_shows_the_spec_as_it_is_understood(run: Run) -> None:
    ended = run("explain", "band", "--length", "256", "--png", "pictures/band.png")
    assert ended.code == 0
    for text in (
        "band: A band.",
        "s[q, k] = score - 0.5 * d",
        "mask: bool = d >= 0 and d < 100",
        "d: int = q - k",
        "W: int = 100 (baked in)",
        "query q sees the keys from q - 99 to q",
        "256 queries by 256 keys",
    ):
        assert text in ended.out
    assert Path("pictures/band.png").read_bytes().startswith(b"\x89PNG")


def test_explain_for_machines_counts_pairs_and_tiles(run: Run) -> None:
    (document,) = run("explain", "band", "--length", "256", "--json").documents
    pairs = sum(min(q + 1, 100) for q in range(256))
    assert document["picture"]["density"] == pairs / 256**2
    assert document["picture"]["none"] + document["picture"]["mixed"] + document["picture"]["full"] == 2 * 4
    assert document["lower"] == "q - 99"


def test_explain_draws_scores_where_that_is_asked_for(run: Run) -> None:
    ended = run("explain", "band", "--length", "256", "--score", "--dark", "--png", "scores.png")
    assert ended.code == 0
    assert "added to a visible pair: -49.5 to 0; light is -20 or less, dark is 0" in ended.out
    assert Path("scores.png").read_bytes().startswith(b"\x89PNG")
    (document,) = run("explain", "band", "--length", "256", "--score", "--json").documents
    assert document["scores"] == {"added": [{"head": None, "least": -49.5, "greatest": 0.0}], "bends": []}
    Path("plain.yaml").write_text("name: plain\ncausal: true\n")
    assert "scores are not modified" in run("explain", "plain.yaml", "--length", "64", "--score").out


def test_explain_names_the_kernels_that_a_variant_has_and_what_is_known_of_each(run: Run) -> None:
    Path("learned.yaml").write_text(
        "name: learned\ncausal: true\nscore: score + t[h, k]\n"
        "inputs: {t: {shape: [heads, kv_len], dtype: float32, grad: true}}\n"
    )
    kernels = section_of(run("explain", "learned.yaml", "--length", "64").out, "kernels")
    assert "  delta: what the backward kernels need of each row (not tuned)" in kernels
    assert "  backward_inputs: all calls of variants with learned inputs (not tuned)" in kernels
    assert "  forward: all calls" in kernels and not any("schedule" in line for line in kernels)
    (document,) = run("explain", "learned.yaml", "--length", "64", "--json").documents
    (used,) = {each["detail"] for each in document["configs"] if each["kernel"] == "backward_inputs"}
    assert used == "built-in default: it is not tuned"
    Path("odd.yaml").write_text("name: odd\nmask: (q ^ k) % 3 != 1\n")
    odd = section_of(run("explain", "odd.yaml", "--length", "64").out, "kernels")
    assert sum(line.startswith("  schedule: which tiles") for line in odd) == 1
    assert not any("backward_inputs" in line for line in odd)


def section_of(text: str, title: str) -> list[str]:
    """The lines below a title."""
    lines = text.splitlines()
    below = lines[lines.index(title) + 1 :]
    return below[: next(place for place, line in enumerate(below) if not line.startswith("  "))]
