"""Finds names of people, places and other entities in texts with models of spaCy, through Presidio (extra `presidio`).

Presidio and spaCy are imported when the first text is searched. Where torch is installed, both import it. The models run in the process
that ingests, and no request leaves the machine: a model that is missing is an error and not a download.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import NameSettings
from ratchet.materializer.privacy.finding import Finding

_LOADING = Lock()
_SHORT, _REMEMBERED = 100, 4096
"""Characters up to which the findings of a text are remembered, and number of such texts. Short texts of records repeat."""
_OTHER = ("CARDINAL", "EVENT", "FAC", "LANGUAGE", "LAW", "MISC", "MONEY", "ORDINAL", "PERCENT", "PRODUCT", "QUANTITY", "WORK_OF_ART")
"""Labels of spaCy's models for which Presidio has no entity."""


class NameModel(Protocol):
    """A loaded model, as Presidio offers it."""

    def analyze(self, text: str, language: str, entities: list[str], score_threshold: float) -> list[Any]:
        """Return the entities of a text, each with `entity_type`, `start`, `end` and `score`."""


class NameFinder:
    """Finds the entities that the settings select. Each model searches each text, whatever its language."""

    def __init__(self, settings: NameSettings) -> None:
        self._settings = settings
        self._remembered = lru_cache(_REMEMBERED)(self._search)

    def ready(self) -> None:
        """Load the models. Raises ConfigError if a package or a model is missing or damaged, or if no model knows an entity."""
        engine = _engine(tuple(sorted(self._settings.models.items())))
        known = set(engine.get_supported_entities())
        if unknown := sorted(set(self._settings.entities) - known):
            raise ConfigError(f"privacy.ner.entities: no model finds {', '.join(unknown)}; they find {', '.join(sorted(known))}")

    def __call__(self, text: str) -> list[Finding]:
        """Return the findings in a text. Raises whatever the models raise, for example for a text of more than a million characters."""
        return self._remembered(text) if len(text) <= _SHORT else self._search(text)

    def _search(self, text: str) -> list[Finding]:
        if not any(character.isalpha() for character in text):
            return []
        engine: NameModel = _engine(tuple(sorted(self._settings.models.items())))
        entities, least = list(self._settings.entities), self._settings.min_score
        return [
            Finding(one.start, one.end, one.entity_type.lower(), " ".join(text[one.start : one.end].casefold().split()))
            for language in sorted(self._settings.models)
            for one in engine.analyze(text, language, entities, score_threshold=least)
        ]


def _engine(models: tuple[tuple[str, str], ...]) -> Any:
    with _LOADING:
        return _loaded(models)


@lru_cache(maxsize=4)
def _loaded(models: tuple[tuple[str, str], ...]) -> Any:
    """Return Presidio's engine with nothing but the recognisers of spaCy's models. Lines with the same models share it."""
    missing = [name for name in ("presidio_analyzer", "spacy") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"privacy.ner needs {' and '.join(missing)}; install ratchet[presidio], or remove privacy.ner")
    import spacy
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    loaded = {}
    for language, model in models:
        if not (spacy.util.is_package(model) or (Path(model).is_absolute() and Path(model).is_dir())):
            raise ConfigError(
                f"privacy.ner.models: {language} = {model!r} is neither an installed package nor the absolute path of a folder; "
                f"install it with `python -m spacy download {model}`, or correct the name"
            )
        try:
            loaded[language] = spacy.load(model)
        except Exception as error:
            raise ConfigError(f"privacy.ner.models: {language} = {model!r} cannot be loaded: {error}") from error
        if not {"ner", "transformer_ner", "entity_ruler", "span_finder"} & set(loaded[language].pipe_names):
            raise ConfigError(f"privacy.ner.models: {language} = {model!r} finds no entities; use a model with the component `ner`")
    engine = SpacyNlpEngine(ner_model_configuration=NerModelConfiguration(labels_to_ignore=_OTHER))
    engine.nlp = loaded  # Presidio's own loading downloads models, and asks torch for a GPU
    languages = [language for language, _ in models]
    entities = engine.get_supported_entities()
    recognisers = [SpacyRecognizer(supported_language=language, supported_entities=entities) for language in languages]
    registry = RecognizerRegistry(recognizers=recognisers, supported_languages=languages)
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=languages)
