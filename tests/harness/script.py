"""What the programs ask and what the model server answers. Each text has a word of its own, so that a search shows what an export has.

The programs import this module in environments without Ratchet, so it needs the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL = "gpt-4o"
MESSAGES_MODEL = "sonnet-9"
IMAGE = "https://example.test/lighthouse.png"
PIXELS = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A picture of one pixel, for libraries that would fetch an address."""
SYSTEM = "You answer guests of the harbour Kiebitz in one sentence."


@dataclass(frozen=True)
class Call:
    """A tool call that the server makes."""

    name: str
    arguments: dict[str, object]
    result: str
    """What the program answers."""


@dataclass(frozen=True)
class Scene:
    """One question of a program, and the answers of the server: with calls first, and with `text` after their results."""

    name: str
    prompt: str
    text: str
    calls: tuple[Call, ...] = ()
    before: str = ""
    """Text that the server writes beside its calls."""
    reasoning: str = ""
    fails: bool = False
    """The server answers with status 400."""
    consent: bool = True

    @property
    def user(self) -> str:
        """The user that the program names."""
        return f"user-{self.name}"

    @property
    def session(self) -> str:
        """The session that the program names."""
        return f"session-{self.name}"


TIDE = Call("tide_table", {"port": "Amrum", "day": 14}, "High water at 07:41 in Amrum.")
WIND = Call("wind_report", {"station": "Bojenfeld"}, '{"knots": 17, "from": "Südwest"}')
SWELL = Call("wind_report", {"station": "Dünenkante"}, '{"knots": 23, "from": "Nord"}')

SCENES = {
    scene.name: scene
    for scene in (
        Scene("plain", "Where may I moor a dinghy at Albatros pier?", "Dinghies moor at the southern steps of Albatros pier."),
        Scene("history", "And how much is it for two nights, Basstölpel rate?", "Two nights cost 18 € at the Basstölpel rate."),
        Scene("stream", "When does the Chinook ferry leave?", "The Chinook ferry leaves at ten past nine."),
        Scene("tool", "When is high water for the Delfin tour?", "The Delfin tour starts at high water, 07:41.", (TIDE,)),
        Scene("parallel", "Compare tide and wind for the Eissturm race.", "Eissturm: high water 07:41, wind 17 knots.", (TIDE, WIND)),
        Scene("twice", "Which station of the Fregatte course has more wind?", "Fregatte: more at the second one.", (WIND, SWELL)),
        Scene("tool_stream", "Is the Gezeiten walk possible today?", "The Gezeiten walk is possible after ten.", (WIND,)),
        Scene("said", "Look up the tide for the Hummer stall.", "The Hummer stall opens at 07:41.", (TIDE,), before="Let me see, Imker."),
        Scene("image", "Which landmark is on the Jolle picture?", "The Jolle picture shows a lighthouse."),
        Scene("json", "Write the Kormoran note as JSON.", '{"content": "Kormoran: buy rope", "title": "Note", "done": false}'),
        Scene(
            "reasoning",
            "How long is the Lotse passage?",
            "The Lotse passage takes two hours.",
            reasoning="Six miles at three knots, Makrele.",
        ),
        Scene(
            "reasoned_tool", "Plan the Nebelhorn trip.", "Start the Nebelhorn trip at 07:41.", (TIDE,), reasoning="The tide decides, Otter."
        ),
        Scene("developer", "What does the Pegel lamp mean?", "The Pegel lamp means that the sluice is closed."),
        Scene("code", "Show the Qualle class in Python.", "```python\nclass Qualle(object):\n    pass\n```\nThat is all."),
        Scene("refused", "I am ill on the Rettung boat, help.", "Please call the coast guard, Rettung boat.", consent=False),
        Scene("failing", "Book the Sturmflut berth.", "", fails=True),
    )
}
EARLIER = ("Is there room at the Teller buoy?", "Yes, the Teller buoy has three places.")
"""Question and answer before the question of the scene `history`."""


def tool(call: Call) -> dict[str, object]:
    """Return the JSON schema of the arguments of a tool."""
    kinds = {str: "string", int: "integer"}
    fields = {name: {"type": kinds[type(value)]} for name, value in call.arguments.items()}
    return {"type": "object", "properties": fields, "required": list(fields)}


TOOLS = {"tide_table": ("Times of high water.", tool(TIDE)), "wind_report": ("Wind at a station.", tool(WIND))}
"""Name of a tool -> description and schema of its arguments."""


def result_of(name: str, arguments: dict[str, object]) -> str:
    """Return what a tool answers."""
    return next(call.result for call in (TIDE, WIND, SWELL) if (call.name, call.arguments) == (name, arguments))
