"""Tests of turns that ask the same as the turn before."""

from __future__ import annotations

import pytest

from ratchet.materializer.labels.signals.repeated import asks_again


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("What is the capital of Australia?", "what is the capital of australia"),
        ("What is the capital of Australia?", "No, I asked: what is the capital of Australia?"),
        ("How do I restart the payment service?", "How do I restart the paymnet service"),
        ("Please list the open invoices of March in a table", "list the open invoices of March in a table"),
        ("Wie kündige ich meinen Vertrag?", "Nochmal: wie kündige ich meinen Vertrag?"),
        ("Quelle est la capitale de l'Australie ?", "Non, quelle est la capitale de l'Australie"),
        ("Как мне отменить заказ?", "Так как мне отменить мой заказ?"),
        ("澳大利亚的首都是哪里？", "请问澳大利亚的首都是哪里"),
    ],
)
def test_the_same_question_is_asked_again(before: str, after: str) -> None:
    assert asks_again(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Translate the word dog into French", "Translate the word cat into French"),
        ("What is 17 + 25 in total?", "What is 17 + 26 in total?"),
        ("yes", "yes"),
        ("go on please", "go on please"),
        ("What is the capital of Australia?", "And what is the capital of Austria?"),
        ("Wie kündige ich meinen Vertrag?", "Wie verlängere ich meinen Vertrag?"),
        ("Quelle est la capitale de la France ?", "Quelle est la capitale de la Suède ?"),
        ("澳大利亚的首都是哪里？", "加拿大的首都是哪里？"),
        ("Which plan is the cheapest?", "Thanks, but which plan has the most data and no contract for students?"),
        ("How do I reset it?", "How do I reset it on the old phone without the password of my account?"),
        ("word " * 500, "word " * 500),
        ("", ""),
    ],
)
def test_another_turn_is_no_repetition(before: str, after: str) -> None:
    assert not asks_again(before, after)
