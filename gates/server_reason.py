"""The reason that a model server gives for a failed request, without anything that users or models wrote. Pure.

A server may repeat the request, or a part of the answer, in its error. The reason is recorded in the ledger, from which nothing is
erased. So each word that the request contains is left out, unless it belongs to the vocabulary of servers. Servers repeat texts mostly in
quotes, which are left out, and in brackets or after a colon, where only this vocabulary is kept. Long words, addresses and words outside of
ASCII are always left out, which also removes credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ratchet.contracts.evaluation import ChatRequest
from ratchet.runtime.http_replies import strict_json

MOST_CHARACTERS = 200
"""Maximum length of a reason."""
_READ = 600
"""Number of characters of a server's text that are looked at."""
_LONGEST = 24
"""Length from which a word may be a key or encoded text."""
_LEFT_OUT = "…"

_SERVER_WORDS = """
a abort aborted accelerator access adapter after allocate allocated allocation allowed already an and answer api argument assert assertion
at attention authentication authorization available back backend bad batch be because been before being body both broken budget busy but
by cache call calls cannot capacity channel chat check choice choices chunk client closed code compile completion completions config
configuration connection content context could crashed cuda cudnn data dead decode decoding denied deployed device did disabled disk does
down dtype due during each empty enable engine entity error errors exceed exceeded exceeding exceeds exception executor exist exists
exited expected failed failure fatal field file finish finished first float for format found free from full function gateway generate
generated generation gib given gpu gpus grammar guided had has have header host hours however illegal image images in inactive index
initialize input inputs instance instead insufficient integer internal interrupted invalid is it its json kernel key killed large larger
launch layer length less limit limited limits load loaded loading logits logprobs long longer lora lost made many match max maximum may
memory message messages method mib minimum minutes missing model models more must name nan nccl negative network no not number object of
on one only open operation option or out output over overloaded padding parameter parameters parse parsing pending per permission please
pool port position prefill process prompt prompts provided quantization queue quota range rank rate reached read refused request requested
requests required requires reset resource resources response retry role running runtime runtimeerror sampling scheduler schema seconds
seed segmentation sequence server service shape shut shutdown shutting signal size slot space started status still stop stopped stream
string supported system task temperature template tensor terminated text than that the their there this time timed timeout to token
tokenizer tokens too tool tools top total tried try type unable unauthorized unavailable unexpected unknown unsupported up use used user
uses using valid value valueerror version was weights were when while window with within without worker workers wrong you your zero
"""
_VOCABULARY = frozenset(_SERVER_WORDS.split())
"""Words of model servers. None of them says anything about a person, also if a prompt contains it."""

_QUOTES = '"`´“”„«»‘’'
_PIECES = re.compile(rf"(?<!\w)'(?=\S)|[{_QUOTES}\[\](){{}}<>:\n]|[^\s{_QUOTES}\[\](){{}}<>:]+")
_CLOSED = {"(": ")", "[": "]", "{": "}", "<": ">"}
_WORDS = re.compile(r"[A-Za-z]+(?:'[a-z]{1,2})?|[0-9]+(?:[.,][0-9]+)*")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{2,47}")


def server_reason(body: bytes, request: ChatRequest) -> str:
    """Return the reason in the body of a failed reply, at most MOST_CHARACTERS long; empty text if it gives none.

    The body may be JSON in the form of the API, `{"error": {"message", "type", "code"}}`, or in that of common frameworks, or plain text.
    """
    known = _Known(request)
    message, kind = _given(body)
    text = _clean(message, known)
    name = kind if _IDENTIFIER.fullmatch(kind) and known.allows_name(kind) else ""
    text = text or name
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1].rstrip() + _LEFT_OUT


def _given(body: bytes) -> tuple[str, str]:
    """Return the message and the kind of an error."""
    try:
        found = strict_json(body)
    except (ValueError, RecursionError):
        text = body[: 4 * _READ].decode(errors="replace")
        return ("", "") if text.lstrip().startswith("<") else (text, "")  # a page of a proxy
    inner = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(inner, dict):
        return (inner, "") if isinstance(inner, str) else ("", "")
    message = next((inner[name] for name in ("message", "detail", "msg", "error") if isinstance(inner.get(name), str)), "")
    kind = next((inner[name] for name in ("code", "type") if isinstance(inner.get(name), str)), "")  # only a fallback for a message
    return message, kind


class _Known:
    """The words of a request."""

    def __init__(self, request: ChatRequest) -> None:
        self._text = " ".join(_texts([*request.messages, *(request.tools or ())])).casefold()
        self._words = set(re.findall(r"[a-z]+|[0-9]+", self._text))
        self._digits = "".join(re.findall(r"[0-9]", self._text))

    def allows(self, word: str) -> bool:
        """Return whether a word outside of quotes may be shown: the request does not contain it, also not as a part of a longer word."""
        low = word.casefold()
        if low in _VOCABULARY:
            return True
        if low[0].isdigit():  # many numbers contain a short one
            digits = "".join(re.findall(r"[0-9]", low))
            return low not in self._words and not (len(digits) > 4 and digits in self._digits)
        return low not in self._words and not (len(low) > 2 and low in self._text)

    def allows_name(self, name: str) -> bool:
        """Return whether an identifier such as `context_length_exceeded` may be shown."""
        return all(self.allows(part) for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield str(name)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif value is not None:
        yield str(value)


def _clean(message: str, known: _Known) -> str:
    """Return a message without what may be content of the request or of an answer."""
    text = message[:_READ]
    quoted, strict, closing, shown = "", False, list[str](), list[str]()
    for piece in _PIECES.findall(text):
        if piece in _QUOTES or piece == "'":
            quoted = "" if quoted else piece
            _leave_out(shown)
        elif quoted:
            quoted = "" if quoted == "'" and piece.rstrip(".,;").endswith("'") else quoted
        elif piece in _CLOSED:
            closing.append(_CLOSED[piece])
        elif piece in _CLOSED.values():
            closing = closing[:-1]
        elif piece in ":\n":
            strict = True
            if shown and shown[-1] != _LEFT_OUT and not shown[-1].endswith(":"):
                shown[-1] += ":"
        elif re.search(r"\w", piece):
            _add(shown, piece, known, strict or bool(closing))
    return " ".join(shown).strip(f": {_LEFT_OUT}")


def _add(shown: list[str], piece: str, known: _Known, strict: bool) -> None:
    """Add a word with its punctuation, or leave it out."""
    word = piece.rstrip(".,;!?")
    parts = _WORDS.findall(word)
    is_plain = len(word) < _LONGEST and "".join(parts) == word.replace("-", "").replace("_", "")
    if is_plain and all(part.casefold() in _VOCABULARY or (not strict and known.allows(part)) or _is_figure(part, known) for part in parts):
        shown.append(piece)
    else:
        _leave_out(shown)


def _is_figure(part: str, known: _Known) -> bool:
    """Return whether a word is a number of the server, such as a limit: a short one that the request does not contain."""
    return part[0].isdigit() and len(part) <= 7 and known.allows(part)


def _leave_out(shown: list[str]) -> None:
    if not shown or shown[-1] != _LEFT_OUT:
        shown.append(_LEFT_OUT)
