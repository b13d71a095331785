"""Chat templates in the shapes that models have, for the words of the tiny model."""

from __future__ import annotations

import json
import re
from typing import Any

TURNS = "{% for m in messages %}<user> {{ m.content }} <end>{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
PLAIN = (
    "{% for m in messages %}{{ '<assistant> ' if m.role == 'assistant' else '<user> ' }}{{ m.content }} "
    "{% if m.role == 'assistant' %}<end>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + PLAIN
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{% endfor %}" + PLAIN
)
TRIMMING = PLAIN.replace("{{ m.content }}", "{{ m.content | trim }}")
LAST_LINE = PLAIN.replace("{{ m.content }}", "{{ m.content.split('|')[-1] }}")
THINKING = PLAIN.replace("prompt %}<assistant> {% endif %}", "prompt %}<assistant> up {% endif %}")
GENERATION = PLAIN.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")
NO_END = PLAIN.replace("{% if m.role == 'assistant' %}<end>{% endif %}", "")
BROKEN = "{{ messages[0].content + 1 }}"
STRICT = PLAIN.replace("{{ m.content }}", "{{ m.content if m.content is string else raise_exception('text only') }}")
FIRST_USER = "{% set first = messages | selectattr('role', 'equalto', 'user') | list %}{{ first[0].content }} " + PLAIN

SHAPES = {
    "plain": PLAIN,
    "every message alike": TURNS,
    "no system role": NO_SYSTEM,
    "strict alternation": ALTERNATING,
    "trims": TRIMMING,
    "keeps what follows a mark": LAST_LINE,
    "opens a thought": THINKING,
    "marks the answer": GENERATION,
    "no end of turn": NO_END,
    "fails on text": BROKEN,
    "text only": STRICT,
    "needs a user": FIRST_USER,
}
"""Shape of a template -> the template."""
WITH_TOOLS = (
    "{% for t in tools or [] %}<user> {{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant> {{ m.content }} "
    "{% for c in m.tool_calls or [] %}up {{ c.function.name }} {{ c.function.arguments.what }} {% endfor %}<end>"
    "{% elif m.role == 'tool' %}down {{ m.content }} {% else %}<user> {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
TOOLS = json.dumps([{"type": "function", "function": {"name": "left", "parameters": {}}}])
"""The tools of a conversation that `WITH_TOOLS` shows, as rows store them."""


def call(what: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool."""
    function = {"name": "left", "arguments": json.dumps({"what": what})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def letters(template: str) -> Any:
    """Return a tokenizer with this template that knows all text: its tokens are parts of words, and the marks of the template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([template, *["\n\n"] * 99], trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(set(re.findall(r"<[|｜][^<>]+[|｜]>|</?[a-z_]+>", template)))})
    tokenizer.chat_template = template
    return tokenizer
