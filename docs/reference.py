"""Writes the reference pages in docs/reference from the code: `python docs/reference.py`, or `make reference`.

Texts are the docstrings of the code. `docs/reference.toml` contains only the texts that the code does not state.
`tests/docs/test_reference.py` fails if a page is not up to date or if an entry of that file is missing.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import code_facts  # noqa: E402
from docs.code_facts import constants, documented, members  # noqa: E402
from ratchet.contracts import cycle, loop, ports, schema, steps  # noqa: E402
from ratchet.contracts.jobs import exit_codes  # noqa: E402
from ratchet.contracts.jobs.training import JobEvent  # noqa: E402
from ratchet.contracts.loop import Loop, TrainingSettings  # noqa: E402
from ratchet.contracts.wording import FORMS  # noqa: E402
from ratchet.flows.cli.main import cli  # noqa: E402
from ratchet.flows.cli.main import exit_code as command_exit_code  # noqa: E402
from ratchet.flows.config import variables  # noqa: E402
from ratchet.flows.config.home import Home  # noqa: E402
from ratchet.materializer.receive import receiver  # noqa: E402
from ratchet.runtime import bucket_artifacts  # noqa: E402
from ratchet.runtime.jobs import job_protocol  # noqa: E402
from ratchet.runtime.jobs.job_protocol import IncarnationFile, RunFile, Scope, Variable  # noqa: E402
from ratchet.runtime.serving import announcement, exchange  # noqa: E402
from ratchet.trainers.recipes import health_limits  # noqa: E402
from ratchet.trainers.recipes.completion import KINDS  # noqa: E402
from ratchet.trainers.recipes.recipe import Recipe  # noqa: E402

PAGES = ROOT / "docs" / "reference"
TEXTS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "docs" / "reference.toml").read_text())
GENERATED = "<!-- Generated from the code. Change the docstrings, then run `make reference`. -->\n\n"


def prose(text: str | None) -> str:
    """Return a docstring as one line of Markdown that is valid in a table cell."""
    parts = " ".join((text or "").split()).split("`")
    plain = (re.sub(r"([*\[\]])", r"\\\1", part.replace("<", "&lt;")) for part in parts[::2])
    spans = [f"`{part}`" for part in parts[1::2]] + [""]
    return "".join(one + span for one, span in zip(plain, spans, strict=True)).replace("|", "\\|")


def code(text: str) -> str:
    """Return `text` as a code span that is valid in a table cell; empty text stays empty."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def listed(values: Sequence[str]) -> str:
    """Return the values as code spans, separated by commas."""
    return ", ".join(map(code, values))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with a blank line after it."""
    lines = ["|".join(f" {cell} " if cell else " " for cell in cells) for cells in (columns, *rows)]
    return "".join(f"|{line}|\n" for line in (lines[0], "|".join(["---"] * len(columns)), *lines[1:])) + "\n"


def link(title: str) -> str:
    """Return a link to the section whose heading is the code span `title`."""
    return f"[`{title}`](#{re.sub(r'[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"


def noun(doc: str | None) -> str:
    """Return a docstring without `Return the` and without the exceptions, as a description of the result."""
    text = re.sub(r"^Return (the|an?) | Raises .*", "", prose(doc))
    return text[:1].upper() + text[1:]


# The loop file


class Section(NamedTuple):
    """A section of the loop file. `own`: only the fields that the class itself defines. `many`: a list of sections."""

    path: str
    model: type[BaseModel]
    own: bool = False
    note: str = ""
    many: bool = False

    @property
    def title(self) -> str:
        """Heading of the section, as it is written in a loop file."""
        return f"[[{self.path}]]" if self.many else f"[{self.path}]"


def nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the settings class in a field's annotation, if any, and whether the field is a list of it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    found = [model for part in get_args(annotation) if (model := nested(part)[0])]
    return (found[0], Ellipsis in get_args(annotation)) if found else (None, False)


def below(section: Section) -> Iterator[tuple[list[str], Section]]:
    """Yield the sections inside a section, with the names of the fields that contain them."""
    fields: dict[type[BaseModel], list[str]] = {}
    for name in own_fields(section):
        if model := nested(section.model.model_fields[name].annotation)[0]:
            fields.setdefault(model, []).append(name)
    for model, names in fields.items():
        annotation = section.model.model_fields[names[0]].annotation
        note, name = (f"NAME is one of {listed(names)}.", "NAME") if len(names) > 1 else ("", names[0])
        if get_origin(annotation) is dict:
            note, name = "NAME is a name of your own. There may be several.", f"{name}.NAME"
        yield names, Section(f"{section.path}.{name}".lstrip("."), model, note=note, many=nested(annotation)[1])
    if section.model is TrainingSettings:
        note = f"METHOD is one of {listed([method.value for method in KINDS])}. All recipes have these keys."
        yield [], Section("training.METHOD", Recipe, note=note)
        yield from (([kind.value], Section(f"training.{kind.value}", model, own=True)) for kind, model in KINDS.items())


def own_fields(section: Section) -> list[str]:
    """Return the names of the fields that a section lists."""
    return [name for name in section.model.model_fields if not section.own or name in section.model.__annotations__]


def sections(section: Section) -> Iterator[Section]:
    """Yield a section and all sections inside it, depth first, in the order of the code."""
    yield section
    for _, inner in below(section):
        yield from sections(inner)


def described(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return type and bounds of a JSON schema in readable form."""
    if "$ref" in schema:
        return described(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        return " or ".join(described(one, definitions) for one in schema["anyOf"] if one.get("type") != "null")
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ("one of " if len(values) > 1 else "") + listed([json.dumps(value) for value in values])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}; each: {described(schema['prefixItems'][0], definitions)}"
        case "array":
            return f"list; each: {described(schema['items'], definitions)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            keys = listed(schema.get("propertyNames", {}).get("enum", [])) or "text"
            return f"table; keys: {keys}; values: {described(schema['additionalProperties'], definitions)}"
        case "object":
            return "table"
        case "string" if schema.get("format") == "date":
            return "date"
        case "string":
            return FORMS[schema["pattern"]] if "pattern" in schema else "text"
        case name:
            signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
            return ", ".join([str(name or "any value"), *(f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema)])


def toml(value: Any) -> str:
    """Return a default value in TOML notation."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def key_row(section: Section, name: str, homes: dict[str, Section], schema: dict[str, Any]) -> list[str]:
    """Return the table row of one key of a section: key, type, default, meaning."""
    field, (model, many) = section.model.model_fields[name], nested(section.model.model_fields[name].annotation)
    value = field.get_default(call_default_factory=True)
    kind = described(schema["properties"][name], schema.get("$defs", {}))
    named = get_origin(field.annotation) is dict and model is not None
    if name in homes:
        kind = ("list of sections " if many else "sections " if named else "section ") + link(homes[name].title)
    text = members(section.model).get(name) or (inspect.getdoc(model) if model else "")
    return [code(name), kind, "none" if named else default_of(section.model, value, name in homes), prose(text)]


def default_of(kind: type[BaseModel], value: Any, section: bool) -> str:
    """Return the default of a key of the settings class `kind`. `section` states whether the key is a section."""
    if value is PydanticUndefined:
        return "that of the rule" if kind is health_limits.Limit else "**required**"
    if isinstance(value, health_limits.Limit):
        return code(toml(value.model_dump()))
    return "none" if value is None else "defaults of the section" if section else code(toml(value))


def loop_file() -> str:
    """Return the page of the loop file."""
    conventions = str(loop.__doc__).partition("Unknown keys")
    page = "# Loop file\n\nA loop file is a TOML file that configures one line. " + prose("".join(conventions[1:]))
    page += " Without a default, a key is **required**; the default `none` (in the descriptions: None) means that the key is absent.\n\n"
    for section in sections(Section("", Loop)):
        homes = {name: inner for names, inner in below(section) for name in names}
        schema = section.model.model_json_schema()
        action = f"\n\n{prose(constants(health_limits)['Action'])}" if section.model is health_limits.Health else ""
        if section.path:
            page += f"## `{section.title}`\n\n{' '.join(filter(None, [prose(inspect.getdoc(section.model)), section.note]))}{action}\n\n"
        page += table(["key", "type", "default", "meaning"], [key_row(section, name, homes, schema) for name in own_fields(section)])
    return page


# Commands


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[click.Context, click.Command]]:
    """Yield a command and all its sub-commands, each with its context."""
    context = click.Context(command, parent, name, **command.context_settings)
    yield context, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            yield from commands(found, inner, context) if found else ()


def command_page(context: click.Context, command: click.Command) -> str:
    """Return the section of one command: usage, help, arguments, options."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    paragraphs = "\n\n".join(prose(part) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    page = f"## `{context.command_path}`\n\n```\n{usage}\n```\n\n{paragraphs}\n\n"
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option)]
    if arguments:
        rows = [[code(one.human_readable_name.rstrip(".")), argument_use(one)] for one in arguments]
        page += table(["argument", "use"], rows)
    if options:
        page += table(["option", "default", "meaning"], [option_row(one, context) for one in options])
    return page


def argument_use(argument: click.Argument) -> str:
    """Return whether an argument is required and may be repeated, and its default."""
    default = f", default {code(argument.default)}" if isinstance(argument.default, str) else ""
    return ("required" if argument.required else "optional") + default + (", one or more" if argument.nargs == -1 else "")


def option_row(option: click.Option, context: click.Context) -> list[str]:
    """Return the table row of an option: its form, default and meaning with bounds."""
    form = (option.get_help_record(context) or (" ".join(option.opts), ""))[0]
    extra: dict[str, Any] = dict(option.get_help_extra(context))
    bounds = f" Range: {code(str(extra['range']))}." if "range" in extra else ""
    default = str(extra.get("default", "")).strip("()")
    spoken = isinstance(option.show_default, str)
    return [code(form), default if spoken else code(default), prose(option.help) + bounds]


def command_line() -> str:
    """Return the page of all commands."""
    found = list(commands(cli, "ratchet"))
    codes = prose(command_exit_code.__doc__).replace("Return the exit code:", "The exit code is 0 after success,")
    page = f"# Commands\n\nEvery command also accepts `-h` and `--help`. {codes}\n\n"
    page += table(["command", "purpose"], [[link(one.command_path), prose((cmd.help or "").split("\n\n")[0])] for one, cmd in found])
    return page + "".join(command_page(*one) for one in found)


# The ledger


def keyed(content: type[BaseModel]) -> str:
    """Return the data keys of a row with this content. A field with a default is optional."""
    found = content.model_fields.items()
    return ", ".join(code(field.alias or name) + " (optional)" * (not field.is_required()) for name, field in found)


def fields(kind: type, names: Iterator[tuple[str, str]]) -> str:
    """Return the docstring of a class and the table of its members, given as (shown text, name of the member)."""
    docs = members(kind)
    return f"{prose(kind.__doc__)}\n\n" + table(["name", "meaning"], [[code(shown), prose(docs[name])] for shown, name in names])


def enumeration(kind: type[StrEnum]) -> str:
    """Return the description of an enumeration and its values."""
    return fields(kind, ((one.value, one.name) for one in kind))


def record(kind: type[BaseModel]) -> str:
    """Return the description of a record and its fields."""
    return fields(kind, ((name, name) for name in kind.model_fields))


KEYS = {steps.Step.TRAIN: "train/ATTEMPT/INCARNATION"}
"""Step -> key of its rows, if it is not the name of the step."""


def steps_section() -> str:
    """Return the table of the steps, and the types of their results."""
    rows = []
    for one in steps.STEPS.values():
        kinds, key = ("`asked`, `answered`", one.approval) if one.approval else ("`intended`, `done`", KEYS.get(one.step, one.step))
        result = link(one.result.__name__) if one.result else ""
        rows.append([code(one.step), prose(one.purpose), kinds, code(key), result, listed(one.needs), code(one.after)])
    page = f"{prose(steps.Step.__doc__)} The functions in `flows/engine/effects.py` perform the effects of the steps.\n\n"
    page += table(["step", "purpose", "rows", "their key", "content of `done`", "reads", "state afterwards"], rows)
    results = [one.result for one in steps.STEPS.values() if one.result]
    return page + "".join(f"### `{kind.__name__}`\n\n{prose(kind.__doc__)}\n\n{result_fields(kind)}" for kind in results)


def result_fields(kind: type[BaseModel]) -> str:
    """Return the table of the fields of a result, with their types."""
    docs, rows = members(kind), []
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        shown = annotation.__name__ if isinstance(annotation, type) else re.sub(r"(\w+\.)+", "", str(annotation))
        rows.append([code(name), code(shown), prose(docs.get(name))])
    return table(["field", "type", "meaning"], rows)


def rows_of(stream: str) -> str:
    """Return the table of the rows of one kind of stream."""
    rows, calls = [], code_facts.ledger_rows()
    for name, entry in TEXTS["rows"].items():
        if stream in entry["streams"]:
            content = calls[name].content
            data = keyed(content) if content else entry.get("data", "")
            rows.append([code(name.split()[0]), entry.get("key", ""), data, entry["meaning"], code(calls[name].path)])
    return table(["kind", "key", "data", "meaning", "written by"], rows)


def ledger() -> str:
    """Return the page of the ledger."""
    streams = list(code_facts.streams())
    page = "# Ledger\n\nThe ledger consists of streams of rows. Each stream is a hash chain.\n\n## Streams\n\n"
    page += table(["stream", "rows of"], [[code(pattern), prose(meaning)] for _, pattern, meaning in streams])
    page += f"## Columns of a row\n\n{record(cycle.Entry)}"
    page += f"## Schema version\n\n{prose(ast.get_docstring(code_facts.tree(ROOT / 'contracts/schema.py')))}\n\n"
    page += f"This release writes version {schema.SCHEMA_VERSION}.\n\n"
    page += "".join(f"## Rows of `{pattern}`\n\n{rows_of(name)}" for name, pattern, _ in streams)
    page += f"## Steps\n\n{steps_section()}## States\n\n{enumeration(steps.State)}## Approvals\n\n{enumeration(cycle.ApprovalKind)}"
    return page + f"### Answer\n\n{record(cycle.Answer)}### Identity\n\n{enumeration(cycle.Identity)}"


# Jobs, files and extension points


def variables_of(scope: Scope) -> list[list[str]]:
    """Return the table rows of the variables of a job with this scope."""
    found = {name: getattr(job_protocol, name) for name in constants(job_protocol)}
    ours = {name: one for name, one in found.items() if isinstance(one, Variable) and one.scope is scope}
    return [[code(one.name), code(one.default or ""), prose(constants(job_protocol)[name])] for name, one in ours.items()]


def variables_of_service() -> dict[str, str]:
    """Return name -> meaning of the variables of the service and its scripts."""
    modules = (variables, receiver, announcement, exchange, bucket_artifacts)
    found = {str(getattr(module, name)): text for module in modules for name, text in constants(module).items()}
    return {name: text for name, text in found.items() if name.startswith("RATCHET_")} | TEXTS["environment"]


def job_files() -> list[list[str]]:
    """Return the table rows of the files of jobs."""
    plan = job_protocol.plan_folder("PLAN") + "/"
    attempt = plan + job_protocol.attempt_folder("N") + "/"
    incarnation = attempt + job_protocol.incarnation_folder("M") + "/"
    found = [(job_protocol.job_record("JOB"), job_protocol.job_record.__doc__), (plan, job_protocol.plan_folder.__doc__)]
    found += [(attempt, job_protocol.attempt_folder.__doc__), *((attempt + file, members(RunFile)[file.name]) for file in RunFile)]
    found += [(incarnation, job_protocol.incarnation_folder.__doc__)]
    found += [(incarnation + file, members(IncarnationFile)[file.name]) for file in IncarnationFile]
    found += [(incarnation + job_protocol.step_folder("K") + "/", job_protocol.step_folder.__doc__)]
    of_a_node = (job_protocol.beat_file, job_protocol.result_file, job_protocol.trainer_log)
    found += [(incarnation + name("NODE"), name.__doc__) for name in of_a_node]
    return [[code(path), noun(re.sub(r"^Return the (name|path) of ", "Return ", text or ""))] for path, text in found]


def exit_code_rows() -> Iterator[list[str]]:
    """Yield the table rows of the exit codes of a job."""
    for name, text in constants(exit_codes).items():
        number = getattr(exit_codes, name)
        outcome = "" if number == exit_codes.ALREADY_STARTED else exit_codes.outcome_of(number)
        yield [str(number), code(outcome), prose(text)]


def job_protocol_page() -> str:
    """Return the page of the interface between the service and its jobs."""
    page = "# Job protocol\n\nThe service and a job exchange information through environment variables, files and exit codes.\n\n"
    page += "## Environment variables\n\n[Operations](../operations.md) names the variables of Prefect and MLflow.\n\n"
    for scope in Scope:
        page += f"### Scope: {scope}\n\n{prose(members(Scope)[scope.name])}\n\n"
        page += table(["variable", "default", "meaning"], variables_of(scope))
    page += "### Variables of the service\n\nThese variables are not part of the protocol.\n\n"
    page += table(["variable", "meaning"], [[code(name), prose(text)] for name, text in variables_of_service().items()])
    page += "## Files\n\nPaths are relative to the folder `lines/LINE/jobs` of the installation. The folder `cluster` in it contains the "
    page += "submission records and cost meters of gangs; pods cannot write there.\n\n" + table(["path", "content"], job_files())
    kinds = [kind.strip() for kind in members(JobEvent)["kind"].split("|")]
    page += f"The kinds of events in `events.jsonl` are {listed(kinds)}.\n\n"
    page += f"## Exit codes\n\n{prose(exit_codes.__doc__)}\n\n" + table(["code", "outcome", "meaning"], list(exit_code_rows()))
    return page + prose(exit_codes.outcome_of.__doc__) + f"\n\n## Outcomes\n\n{enumeration(exit_codes.Outcome)}"


def files() -> str:
    """Return the page of the folder layout."""
    source = Path(inspect.getsourcefile(Home) or "")
    page = f"# Files of an installation\n\n{prose(sys.modules[Home.__module__].__doc__)} LINE is the name of a line.\n\n"
    paths = {code_facts.home_path(function): ast.get_docstring(function) for function in code_facts.functions(source).values()}
    page += table(["path", "content"], [[code(path), noun(text)] for path, text in paths.items() if path])
    return page + "The files of training jobs are listed in [Job protocol](job-protocol.md#files).\n"


def port_section(port: ast.ClassDef) -> str:
    """Return the description of a port: its attributes and methods."""
    page, docs = f"{prose(ast.get_docstring(port))}\n\n", documented(port.body)
    for node in port.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            page += f"- `{ast.unparse(node)}`<br>{prose(docs[node.target.id])}\n"
        if isinstance(node, ast.FunctionDef):
            given = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
            result = ast.unparse(node.returns) if node.returns else "None"
            page += f"- `{node.name}({given}) -> {result}`<br>{prose(ast.get_docstring(node))}\n"
    return page + "\n"


def extension_points() -> str:
    """Return the page of the entry points and the ports."""
    modules = [code_facts.tree(path) for path in sorted((ROOT / "contracts/ports").glob("*.py"))]
    page = "# Extension points\n\nInstalled packages extend Ratchet through entry points. "
    page += "An entry point is a class, or a function that returns the object. Options of the loop file are passed as keyword arguments. "
    page += "[Extend Ratchet](../extending/index.md) gives the steps.\n\n"
    for group, built_in in code_facts.entry_points().items():
        entry = TEXTS["extensions"][group]
        page += f"## `{group}`\n\nAn entry point of this group implements the port {link(entry['port'])}. {entry['use']}\n\n"
        rows = [[code(name), code(target), prose(code_facts.purpose(target))] for name, target in built_in.items()]
        page += table(["name", "class or function", "purpose"], rows)
    page += f"## Ports\n\n{prose(ports.__doc__)}\n\n"
    found = sorted((node for module in modules for node in module.body if isinstance(node, ast.ClassDef)), key=lambda port: port.name)
    return page + "".join(f"### `{port.name}`\n\n{port_section(port)}" for port in found)


def options_of(scorer: type) -> type[BaseModel]:
    """Return the options class of a built-in scorer, which it names, or which has its name and is in its module."""
    found = getattr(scorer, "options_type", None) or getattr(sys.modules[scorer.__module__], f"{scorer.__name__}Options")
    assert issubclass(found, BaseModel)
    return found


def rewards() -> str:
    """Return the page of the built-in rewards and their options."""
    page = (
        "# Rewards\n\nThe built-in rewards, and the options that a loop file sets with `options` in [`[[rewards]]`](loop-file.md#rewards). "
    )
    page += (
        "[Score answers](../howto/rewards.md) has an example of each. A reward that needs at most prompt, answer and reference also scores "
    )
    page += "new answers: in the probe and at the gate.\n\n"
    for name, target in code_facts.entry_points()["ratchet.rewards"].items():
        scorer = importlib.metadata.EntryPoint(name, target, "ratchet.rewards").load()
        tier, needs = scorer.tier.value, ", ".join(sorted(scorer.needs))
        paragraphs = "\n\n".join(prose(part) for part in str(inspect.getdoc(scorer)).split("\n\n"))
        page += f"## `{name}`\n\n{paragraphs}\n\nDefault tier: {tier}. Reads: {needs}.\n\n"
        section = Section("", options_of(scorer))
        schema = section.model.model_json_schema()
        if section.model.model_fields:
            page += table(["option", "type", "default", "meaning"], [key_row(section, key, {}, schema) for key in own_fields(section)])
    return page


MAKERS = {
    "loop-file.md": loop_file,
    "commands.md": command_line,
    "ledger.md": ledger,
    "job-protocol.md": job_protocol_page,
    "files.md": files,
    "extension-points.md": extension_points,
    "rewards.md": rewards,
}


def page_text(name: str) -> str:
    """Return the content of a reference page."""
    return GENERATED + MAKERS[name]().rstrip() + "\n"


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for page_name in MAKERS:
        (PAGES / page_name).write_text(page_text(page_name))
