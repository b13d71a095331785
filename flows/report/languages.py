"""Estimates the language of a text by its script and its most frequent words. A rough count for reports; it decides nothing."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

UNKNOWN = "unknown"
_SCRIPTS = {
    "CYRILLIC": "Cyrillic script",
    "ARABIC": "Arabic script",
    "HEBREW": "Hebrew",
    "GREEK": "Greek",
    "DEVANAGARI": "Devanagari script",
    "THAI": "Thai",
    "HANGUL": "Korean",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "CJK": "Chinese",
}
"""First word of the Unicode names of letters -> language, or the script if several languages use it."""
_WORDS = {
    "English": "the and is of to in that it you for what how with are this not can my do be",
    "German": "der die das und ist nicht ich ein eine mit wie zu den auf für von was kann wird sie",
    "French": "le la les et est de des un une que je pas pour dans qui avec vous sur ce comment",
    "Spanish": "el la los las y es de que en un una no por con para como qué se mi cómo",
    "Portuguese": "o a os as e é de que em um uma não por com para como do da meu você",
    "Italian": "il la e è di che un una non per con come sono del della gli mi cosa si ho",
    "Dutch": "de het een en is van ik niet dat op te voor met hoe zijn wat je mijn kan aan",
}
_OF = {language: frozenset(words.split()) for language, words in _WORDS.items()}
_LETTERS = 400
"""Number of characters that are examined."""


def language_of(text: str) -> str:
    """Return the probable language of a text, a script, or UNKNOWN."""
    start = text[:_LETTERS]
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in start if letter.isalpha())
    if not scripts:
        return UNKNOWN
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0.1 * scripts.total():
        return "Japanese"
    script = scripts.most_common(1)[0][0]
    if script in _SCRIPTS:
        return _SCRIPTS[script]
    words = re.findall(r"[^\W\d_]+", start.lower())
    hits = {language: sum(word in known for word in words) for language, known in _OF.items()}
    best, most = max(hits.items(), key=lambda item: item[1])
    second = max(count for language, count in hits.items() if language != best)
    return best if most > second and most >= max(1, len(words) // 20) else UNKNOWN
