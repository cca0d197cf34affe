"""Reading what a scrape answers, with Prometheus' own parser."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, ...], float]


class Exposition:
    def __init__(self, text: str) -> None:
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self._samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """Of the one series with these labels; None when there is none."""
        found = [it.value for it in self._samples if it.name == name and labels.items() <= it.labels.items()]
        assert len(found) < 2, f"{name}{labels} isn't one series"
        return found[0] if found else None

    def series(self, name: str, *labels: str) -> Series:
        """Values by those of ``labels``, without zeros."""
        return {
            tuple(it.labels[label] for label in labels): it.value
            for it in self._samples
            if it.name == name and it.value
        }

    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}


def scraped(registry: CollectorRegistry) -> Exposition:
    return Exposition(generate_latest(registry).decode())


def problems(families: Iterable[Metric]) -> list[str]:
    """What a linter would say: `promtool check metrics` has these rules."""
    found = []
    for family in families:
        if not family.documentation:
            found.append(f"{family.name}: no help")
        if family.type == "unknown":
            found.append(f"{family.name}: no type")
        if family.type != "counter" and family.name.endswith("_total"):
            found.append(f"{family.name}: only counters end in _total")
        if family.type == "counter" and any(not it.name.endswith("_total") for it in family.samples):
            found.append(f"{family.name}: a counter ends in _total")
        if family.type != "histogram" and family.name.endswith(("_count", "_sum", "_bucket")):
            found.append(f"{family.name}: has a histogram's suffix")
        if any(word in family.name for word in ("millisecond", "minute", "kilobyte", "_ms", "_mb")):
            found.append(f"{family.name}: base units are seconds and bytes")
        if family.type == "histogram" and not family.name.endswith("_seconds"):
            found.append(f"{family.name}: has no unit")
    return found
