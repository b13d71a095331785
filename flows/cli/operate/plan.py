"""`ratchet plan`: shows the training method that a cycle would use now, with its evidence, its cost and the conditions of a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.data.records import Tier
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import show
from ratchet.flows.core.data_notes import data_warnings, left_out, near_note, warned
from ratchet.flows.core.searches.highest_cost import HighestCost, highest_cost
from ratchet.flows.core.searches.search import LEAST_PROMPTS
from ratchet.flows.core.searches.search_results import SPACE_COLUMNS, space

if TYPE_CHECKING:
    from ratchet.contracts.jobs.training import Search
    from ratchet.flows.engine.choice.preview import Preview
    from ratchet.flows.engine.context import LineContext


@click.command()
@line_argument()
@click.option(
    "--no-probe", is_flag=True, help="Do not sample answers from the start model. Faster, but group coverage and headroom remain unknown."
)
@json_option
def plan(line: str, no_probe: bool, as_json: bool) -> None:
    """Show which training method the next cycle would use.

    LINE is the name of a line or the path of its loop file. Also shows the rules and evidence of the choice, the change that would reverse
    each rule, and the estimated cost. Does not open a cycle and does not train.
    """
    with watched(as_json, f"planning the next cycle of {line} …") as progress:
        from ratchet.flows.engine.choice.preview import preview

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        found = preview(context, not no_probe)
        teacher = _teacher(found, context)
    cost = _cost(found, context)
    memory = _memory(found, context)
    highest = highest_cost(context.loop, found.search.budget, context.price) if found.search else None
    if as_json:
        print_json({**_as_json(found, cost, highest), "memory": memory, "teacher": teacher})
        return
    rows = [[row.rule, "yes" if row.holds else "no", row.evidence, row.effect, row.change] for row in found.choice.rules]
    table(f"Choice for line {context.line}, from {found.start.tag}", ["rule", "holds", "evidence", "effect", "would change with"], rows)
    show()
    show(found.choice.reason, bold=True)
    for sentence in [
        *left_out(found.choice),
        *warned(found.choice),
        *(f"Warning: {one}." for one in data_warnings(found.snapshot)),
    ]:
        show(sentence, fg="yellow")
    if (note := near_note(found.snapshot.near)) is not None:
        show(f"{note}.")
    if teacher is not None:
        who, price = f"{teacher['model']} ({teacher['region']})", f"{teacher['highest_cost']:.4f} {teacher['currency']}"
        show(f"Before it freezes the data, a cycle would send {teacher['requests']:,} questions to the teacher {who}, for at most {price}.")
        show("Its answers are not part of this plan.")
    if not found.probed:
        show("Without a probe of the start model, group coverage and headroom are unknown.")
    if cost is not None and found.recipe is not None:
        long = _length(found.recipe, bool(cost["folds"]))
        show(f"A cycle would run {found.method.upper()} ({long}) on a model with {cost['parameters']:,} parameters.")
        spent = f"{cost['gpu_hours']:.2f} GPU hours" if cost["gpu_hours"] else "no GPU"
        spent += f", {cost['price']:.2f} by the price table" if cost.get("price") else ""
        show(f"Estimated cost: {cost['seconds'] / 60:.1f} minutes, {cost['tokens']:,} tokens, {spent} ({cost['basis']}).")
        if cost["folds"]:
            more = f"{cost['folds']} {'run' if cost['folds'] == 1 else 'runs'} more"
            show(
                f"There are {found.data.development_prompts or 0} development prompts, so the run finds its number of steps by "
                f"cross-validation: it trains without a part of the training prompts and scores itself on this part ({more}). "
                "Then it trains on all training prompts."
            )
        if cost["compares"]:
            show("Before that, it may train one model without the answers of teachers, to leave out those that are unlikely (1 run more).")
        _show_memory(memory)
        _show_search(found, context, highest)
        if cost["seconds"] > context.loop.training.timeout:
            show(f"The estimated duration exceeds training.timeout = {context.loop.training.timeout:g} s.", fg="yellow")


def _teacher(found: Preview, context: LineContext) -> dict[str, Any] | None:
    """Return what a cycle that opens now would send to the teacher at most; None without one. Nothing is sent."""
    from ratchet.flows.core.asking.teaching import bound
    from ratchet.flows.engine.asking.teaching import prepare

    settings = context.loop.teacher
    if settings is None:
        return None
    prepared = prepare(context, found.snapshot)
    requests, cost = bound(prepared.questions, prepared.budget)
    return {
        **{"model": settings.model, "region": settings.region, "requests": requests, "highest_cost": cost, "currency": settings.currency},
        "left_out": prepared.left_out,
    }


def _show_search(found: Preview, context: LineContext, highest: HighestCost | None) -> None:
    """Say which recipes a search may try, and what it costs at most; or why the loop file's budget is not used."""
    budget = context.loop.training.search.budget
    if found.search is not None and highest is not None:
        show(f"A search may then spend {budget:,.0f} s of job time on {len(found.search.variants) - 1} more recipes.")
        table("Recipes, in this order", SPACE_COLUMNS, space(found.search))
        show(highest.text)
    elif budget:
        show(
            f"training.search.budget = {budget:g} s is not used: a search needs a run of a built-in trainer with steps = auto, another "
            f"suitable recipe, and {LEAST_PROMPTS} development prompts (present: {found.data.development_prompts or 0}).",
            fg="yellow",
        )


def _length(recipe: Mapping[str, Any], folds: bool) -> str:
    """Describe how long and at which rate a recipe trains."""
    steps, rate = recipe["steps"], recipe["learning_rate"]
    by = "found by cross-validation" if folds else "ended by scores on development prompts"
    long = f"at most {recipe['most_steps']} steps, {by}" if steps == "auto" else f"steps {steps}"
    return f"{long}, {'a learning rate for the width of the model' if rate == 'auto' else f'learning_rate {rate:g}'}"


def _cost(found: Preview, context: LineContext) -> dict[str, Any] | None:
    from ratchet.flows.composition.cost import estimate_cost

    if found.recipe is None or not context.loop.training.built_in(found.method):
        return None
    validated = found.data.cross_validated_prompts if found.search is None else 0
    taught = found.data.facts.demonstrations.get(Tier.TEACHER.value, 0)
    return estimate_cost(context.loop, context.folder, found.method, found.recipe, found.parameters, validated, taught)


def _memory(found: Preview, context: LineContext) -> dict[str, Any] | None:
    from ratchet.flows.composition.cost import estimate_memory

    if found.recipe is None or not context.loop.training.built_in(found.method):
        return None
    return estimate_memory(context.loop, context.folder, found.method, found.recipe, found.parameters, found.config)


def _show_memory(memory: dict[str, Any] | None) -> None:
    """Show the memory of one GPU in each phase, and whether it fits."""
    if memory is None:
        return
    rows = [[phase, name, f"{gib:.1f}"] for phase in ("training", "generation") for name, gib in memory[phase].items()]
    rows += [[phase, "together", f"{sum(memory[phase].values()):.1f}"] for phase in ("training", "generation") if memory[phase]]
    table("Memory of one GPU, in GiB (computed from the sizes, not proven on a GPU)", ["phase", "use", "GiB"], rows)
    if not memory["gpu"]:
        return
    if memory["too_large"]:
        show(
            f"The phase {' and the phase '.join(memory['too_large'])} does not fit on a GPU of {memory['gpu']:g} GiB: use more GPUs, "
            "a smaller micro_batch, shorter answers, gradient_checkpointing or an adapter (lora).",
            fg="yellow",
        )
    elif memory["generation"]:
        show(f"An engine generates {memory['answers_at_once']} answers of full length at once on a GPU of {memory['gpu']:g} GiB.")
    else:
        show(f"It fits on a GPU of {memory['gpu']:g} GiB.")


def _as_json(found: Preview, cost: dict[str, Any] | None, highest: HighestCost | None) -> dict[str, Any]:
    return {
        "method": found.method,
        "reason": found.choice.reason,
        "start": found.start.tag,
        "probed": found.probed,
        "rules": [row.model_dump(mode="json") for row in found.choice.rules],
        "left_out": [one.model_dump(mode="json") for one in found.choice.left_out],
        "warnings": [*found.choice.warnings, *data_warnings(found.snapshot)],
        "facts": found.data.facts.model_dump(mode="json"),
        "recipe": found.recipe,
        "estimate": cost,
        "search": _searched(found.search, highest) if found.search and highest else None,
    }


def _searched(search: Search, highest: HighestCost) -> dict[str, Any]:
    """Return the budget and the names of the recipes of a search, and its highest cost."""
    cost = {**highest.model_dump(mode="json"), "seconds": highest.seconds, "gpu_hours": highest.gpu_hours}
    return {**search.model_dump(mode="json", include={"budget": True, "variants": {"__all__": {"name"}}}), "highest": cost}
