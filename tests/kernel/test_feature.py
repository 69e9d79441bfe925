"""The list of features agrees with the features, and a feature that is missing is no error."""

from __future__ import annotations

import grimp
import pytest

from callgate import feature
from callgate.core.effects import SideEffects
from callgate.feature import FEATURES, Listed, load, port


@pytest.mark.parametrize("listed", FEATURES, ids=lambda listed: listed.name)
def test_a_feature_fills_the_ports_that_are_listed(listed: Listed) -> None:
    found = load(listed.name)
    assert found is not None
    assert found.name == listed.name
    assert set(found.ports) == set(listed.ports)
    assert (found.tools is not None) == bool(listed.tools)


def test_the_tools_of_agents_are_listed_for_each_class_of_effects() -> None:
    (agents,) = (each for each in FEATURES if each.name == "agents")
    assert set(agents.tools) == {f"agent_{effect.value}" for effect in SideEffects}


def test_the_port_of_a_removed_feature_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "FEATURES", (Listed("gone", ports=("work",)),))
    assert load("gone") is None
    assert port("work") is None


def test_a_feature_names_all_features_that_it_imports() -> None:
    graph = grimp.build_graph("callgate", cache_dir=None)
    names = [each.name for each in FEATURES]
    imported = {
        (importer.split(".")[2], module.split(".")[2])
        for module in graph.modules
        if module.startswith("callgate.features.")
        for importer in graph.find_modules_that_directly_import(module)
        if importer.startswith("callgate.features.")
    }
    direct = {name: {other for one, other in imported if one == name and other != name} for name in names}
    wanted: dict[str, set[str]] = {}
    for name in names:  # in the order of imports
        wanted[name] = direct[name].union(*(wanted[each] for each in direct[name]))
    assert {each.name: set(each.needs) for each in FEATURES} == wanted
    assert wanted["web"] >= {"chat"}
