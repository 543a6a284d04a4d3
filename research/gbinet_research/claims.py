"""What the paper claims, and whether it shows in our results: a sentence each, with figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gbinet_research.paper import THRESHOLDS
from gbinet_research.results import Results
from gbinet_research.story import chance
from gbinet_research.variants import label_of

NOT_YET = "not measured yet at this budget."
TIE = 0.2  # points: a smaller difference says nothing, whatever chance was seen


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def claims(results: Results) -> str:
    """All of them, as a Markdown list."""
    return "\n".join(f"- **{claim}** {_sentence(verdict(results))}" for claim, verdict in CLAIMS)


def beyond(results: Results) -> str:
    """What the paper does not claim: our designs against the dense search, with the same help too."""
    rows = (("again", "coarse-to-fine"), ("again", "coarse-to-fine-helped"), ("shipped", "coarse-to-fine"))
    return "\n".join(
        f"- **{_sentence(label_of(ahead))} is more accurate than {label_of(behind)}.** "
        f"{_sentence(_ahead(results, ahead, behind))}"
        for ahead, behind in rows
        if ahead in results and behind in results
    )


def _ahead(results: Results, ahead: str, behind: str) -> str:
    """Whether one is ahead of the other at the paper's thresholds, by more than two seeds differ."""
    pairs = [(t, results.percent(ahead, t), results.percent(behind, t)) for t in THRESHOLDS]
    if any(one is None or other is None for _, one, other in pairs):
        return NOT_YET
    won = [t for t, one, other in pairs if (one or 0) - (other or 0) > _chance(results, t)]
    figures = "; ".join(f"{one:.1f} vs {other:.1f} % within {t:g} mm" for t, one, other in pairs)
    if len(won) == len(pairs):
        return f"shown: {figures}."
    if not won:
        return f"not shown: {figures}."
    return f"shown in part, within {' and '.join(f'{t:g}' for t in won)} mm: {figures}."


def _chance(results: Results, threshold: float) -> float:
    """A difference that chance can make, in points."""
    return max(TIE, chance(results, threshold) or 0.0)


def _keeps(results: Results, name: str, other: str) -> str:
    """Whether one is nowhere behind the other by more than two seeds differ."""
    pairs = [(t, results.percent(name, t), results.percent(other, t)) for t in THRESHOLDS]
    if any(one is None or two is None for _, one, two in pairs):
        return NOT_YET
    behind = any((two or 0) - (one or 0) > _chance(results, t) for t, one, two in pairs)
    figures = "; ".join(f"{one:.1f} vs {two:.1f} % within {t:g} mm" for t, one, two in pairs)
    return f"{'not shown' if behind else 'shown'}: {figures}."


def _less(results: Results, less: str, more: Sequence[str], part: str, words: str) -> str:
    """Whether one variant takes less memory than others."""
    own = results.cost(less, part, "peak_mib")
    others = [(name, results.cost(name, part, "peak_mib")) for name in more]
    if own is None or any(other is None for _, other in others):
        return f"{words}: {NOT_YET}"
    verdict = "shown" if all(own < 0.98 * (other or 0) for _, other in others) else "not shown"
    figures = ", ".join(
        f"{label_of(name)} {other:,.0f} MiB ({100 * own / other:.0f} %)" for name, other in others if other
    )
    return f"{words}: {verdict}, {own:,.0f} MiB vs {figures}."


def _accuracy(behind: str) -> Callable[[Results], str]:
    def verdict(results: Results) -> str:
        found = [f"updated per stage, as published: {_ahead(results, 'gbinet-per-stage', behind)}"]
        if "gbinet" in results:
            found.append(f"Updated once per batch: {_ahead(results, 'gbinet', behind)}")
        return " ".join(found)

    return verdict


def _memory(results: Results) -> str:
    dense = ("dense-linear", "coarse-to-fine")
    parts = (("network", "Float32, all views encoded at once"), ("engine", "As `gbinet depth` runs it"))
    return " ".join(_less(results, "gbinet", dense, part, words) for part, words in parts)


def _tolerance(results: Results) -> str:
    found = _ahead(results, "gbinet", "binet")
    if found == NOT_YET:
        return found
    none, one = (results.valid(name).get(8) for name in ("binet", "gbinet"))
    return f"{found} At stage 8, {none:.1f} % of the pixels are valid without them and {one:.1f} % with them."


def _second(results: Results) -> str:
    memory = _less(results, "gbinet", ("gbinet-6",), "network", "Less memory with one tolerance bin")
    return f"{_ahead(results, 'gbinet-6', 'gbinet')} {memory}"


def _converges(results: Results) -> str:
    """On the network that is updated as published, where it is there."""
    name = "gbinet-per-stage" if "gbinet-per-stage" in results else "gbinet"
    if name not in results:
        return NOT_YET
    words = []
    for threshold in (0.125, 0.5):
        shares = [results.percent(name, threshold, stage) for stage in (6, 7, 8, 9)]
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            return NOT_YET
        six, seven, eight, nine = known
        settled = six < seven < eight and nine - eight < (eight - seven) / 2
        words.append(
            f"{'shown' if settled else 'not shown'} within {threshold:g} mm "
            f"({six:.1f}, {seven:.1f}, {eight:.1f}, {nine:.1f} % after 6 to 9 stages)"
        )
    return f"{'; '.join(words)}."


def _updating(results: Results) -> str:
    kept = _keeps(results, "gbinet-per-stage", "gbinet")
    memory = _less(results, "gbinet-per-stage", ("gbinet-accumulate",), "training", "Training memory")
    return f"compared with one update per batch (the same gradient as `accumulate`): {kept} {memory}"


def _masking(results: Results) -> str:
    return (
        "not testable directly: outside the bins there is no correct class to learn. Including such a pixel "
        "again once smoothing has recovered it improves the network (`shipped` vs `smoothing`): "
        + _ahead(results, "shipped", "smoothing")
    )


def _elsewhere(results: Results) -> str:
    return (
        "not testable here: nothing was trained or measured on DTU, BlendedMVS or Tanks and Temples, and "
        "clouds of rendered scenes cannot be compared with theirs."
    )


def _crops(results: Results) -> str:
    return "not testable here: all rows were trained on windows of larger images."


CLAIMS: tuple[tuple[str, Callable[[Results], str]], ...] = (
    ("GBi-Net is more accurate than dense linear search.", _accuracy("dense-linear")),
    ("GBi-Net is more accurate than dense coarse-to-fine search.", _accuracy("coarse-to-fine")),
    ("It needs less memory than both (22 and 46 % in the paper).", _memory),
    ("Tolerance bins keep pixels in the search and make it more accurate.", _tolerance),
    ("A second tolerance bin makes depth maps a little more accurate, and needs more memory.", _second),
    ("Pixels that have left their bins must be excluded from training.", _masking),
    ("Results improve to stage 8 and then converge.", _converges),
    ("Updating after every stage keeps the accuracy and saves training memory.", _updating),
    ("Random crops improve the network.", _crops),
    ("It was the most accurate network of its time on DTU, BlendedMVS and Tanks and Temples.", _elsewhere),
)
