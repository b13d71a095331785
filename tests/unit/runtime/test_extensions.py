"""Tests of installed extensions: how they are found, which errors name the culprit, and how options are checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.runtime.extensions import ExtensionKind, load, offers
from tests.distributions import distribution

MODULE = """
from __future__ import annotations
import typing
if typing.TYPE_CHECKING:
    from nowhere import Unknown

class Thing:
    def __init__(self, place: str, limit: float, names: tuple[str, ...] = (), *, loud: bool = False) -> None:
        self.given = (place, limit, names, loud)

class Open:
    def __init__(self, **options: object) -> None:
        self.options = options

class Untyped:
    def __init__(self, one: Unknown = None) -> None:
        self.one = one

def made(place: str, size: int = 1) -> str:
    return place * size

class Failing:
    def __init__(self, url: str) -> None:
        raise ValueError(f"no {url}")

class Refusing:
    def __init__(self) -> None:
        from ratchet.contracts.errors import Permanent
        raise Permanent("its own words")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path, in which a test installs distributions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.fixture
def things(site: Path) -> Path:
    targets = {name.lower(): f"things_module:{name}" for name in ("Thing", "Open", "Untyped", "made", "Failing", "Refusing")}
    distribution(site, "thing-maker", "2.1", {"things_module.py": MODULE}, servers=targets)
    return site


def refusal(**options: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load(ExtensionKind.SERVER, "thing").create("here", options=options, where="serving.options")
    return str(raised.value)


def test_each_kind_has_a_group_with_built_in_extensions() -> None:
    assert [kind.group for kind in ExtensionKind] == [
        "ratchet.rewards", "ratchet.sources", "ratchet.dialects", "ratchet.checks", "ratchet.servers", "ratchet.routers",
        "ratchet.metrics", "ratchet.trainers",
    ]  # fmt: skip
    assert all(offers(kind) for kind in ExtensionKind)


@pytest.mark.parametrize("kind", ExtensionKind)
def test_every_built_in_extension_can_be_loaded_and_identified(kind: ExtensionKind) -> None:
    for name in offers(kind):
        version = load(kind, name).identity()
        assert (version.name, len(version.code)) == (name, 64)


def test_a_name_of_another_package_is_found_with_its_distribution(things: Path) -> None:
    found = load(ExtensionKind.SERVER, "thing")
    assert (found.distribution, found.version) == ("thing-maker", "2.1")
    assert found.identity().distribution == "thing-maker"


def test_an_extension_is_imported_only_when_it_is_loaded(things: Path) -> None:
    assert "thing" in offers(ExtensionKind.SERVER)
    assert "things_module" not in sys.modules
    load(ExtensionKind.SERVER, "thing")
    assert "things_module" in sys.modules


def test_an_unknown_name_lists_the_installed_names_and_the_nearest_one(things: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no server 'thnig' is installed; did you mean 'thing'\?; installed: embedded, failing, kubernetes, made"
    ):
        load(ExtensionKind.SERVER, "thnig")


@pytest.mark.parametrize("name", ["os:system", "things_module:Thing", "things_module"])
def test_a_module_path_is_not_a_name(things: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is installed"):
        load(ExtensionKind.SERVER, name)
    assert "things_module" not in sys.modules


def test_a_name_that_two_distributions_offer_is_an_error_that_names_both(things: Path) -> None:
    distribution(things, "other-maker", servers={"thing": "things_module:Thing", "embedded": "things_module:Thing"})
    with pytest.raises(
        ConfigError, match=r"server 'thing' is provided more than once: other-maker .*, thing-maker .*; uninstall all but one"
    ):
        load(ExtensionKind.SERVER, "thing")
    with pytest.raises(ConfigError, match=r"server 'embedded' is provided more than once: other-maker .*, ratchet "):
        load(ExtensionKind.SERVER, "embedded")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("class Other: ...", "AttributeError"),
        ("def (", "SyntaxError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_broken_package_is_named_with_the_reason(site: Path, text: str, said: str) -> None:
    distribution(site, "broken-maker", "3.0", {"broken_module.py": text}, checks={"broken": "broken_module:Check"})
    with pytest.raises(ConfigError) as raised:
        load(ExtensionKind.CHECK, "broken")
    assert "check 'broken' of broken-maker 3.0 cannot be imported from broken_module:Check" in str(raised.value)
    assert said in str(raised.value)
    assert "uninstall broken-maker" in str(raised.value)


def test_options_become_keyword_arguments_of_the_declared_types(things: Path) -> None:
    thing = load(ExtensionKind.SERVER, "thing").create("here", options={"limit": 2, "names": ["a"], "loud": True}, where="x")
    assert thing.given == ("here", 2.0, ("a",), True)
    assert load(ExtensionKind.SERVER, "made").create("ab", options={"size": 2}, where="x") == "abab"
    assert load(ExtensionKind.SERVER, "open").create(options={"anything": 1}, where="x").options == {"anything": 1}
    assert load(ExtensionKind.SERVER, "untyped").create(options={"one": 5}, where="x").one == 5


def test_wrong_options_are_named_with_their_place_in_the_loop_file(things: Path) -> None:
    assert "serving.options.limti: server 'thing' (thing-maker 2.1) has no option 'limti'; did you mean 'limit'?" in refusal(limti=1)
    assert "its options: limit, names, loud" in refusal(limti=1)
    assert "has no option 'place'" in refusal(limit=1, place="elsewhere")
    assert "serving.options.limit: server 'thing' (thing-maker 2.1) needs the option 'limit'" in refusal()
    assert "serving.options.limit: server 'thing' (thing-maker 2.1) rejects 'much'" in refusal(limit="much")


def test_a_failing_constructor_is_a_clear_error_and_its_own_error_is_kept(things: Path) -> None:
    with pytest.raises(ConfigError, match=r"serving.options: server 'failing' .* cannot be created: ValueError: no a;"):
        load(ExtensionKind.SERVER, "failing").create(options={"url": "a"}, where="serving.options")
    with pytest.raises(Permanent, match=r"^its own words$"):
        load(ExtensionKind.SERVER, "refusing").create(options={}, where="serving.options")


def test_the_code_version_changes_with_any_file_of_the_package(site: Path) -> None:
    files = {"maker_package/__init__.py": "", "maker_package/rules.py": "class Check: ...", "maker_package/rubric.txt": "one"}
    distribution(site, "maker", modules=files, checks={"rules": "maker_package.rules:Check"})
    before = load(ExtensionKind.CHECK, "rules").identity()
    (site / "maker_package" / "rubric.txt").write_text("two")
    after = load(ExtensionKind.CHECK, "rules").identity()
    assert (before.distribution, before.version) == (after.distribution, after.version) == ("maker", "1.0")
    assert before.code != after.code
