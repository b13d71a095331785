"""`ratchet erase`: erases the data of people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import person_id
from ratchet.flows.cli.lines import existing, unknown_line
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say, show


@click.command()
@click.option("--user", "users", multiple=True, help="Id of a user as the application sends it, or a pseudonym. Repeatable.")
@click.option("--session", "sessions", multiple=True, help="Id of a session, or a pseudonym. Repeatable.")
@click.option("--users-file", type=click.Path(path_type=Path, dir_okay=False), help="File with one id of a user per line.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and change nothing.")
@click.option("--roll-back", is_flag=True, help="Also roll back lines whose champion was trained on the erased rows.")
@click.option("--receipts", is_flag=True, help="Show the receipts of all erasures, and change nothing.")
@actor_option
@json_option
def erase(
    users: tuple[str, ...],
    sessions: tuple[str, ...],
    users_file: Path | None,
    dry_run: bool,
    roll_back: bool,
    receipts: bool,
    by: str,
    as_json: bool,
) -> None:
    """Erase all data of the given people in all lines: lake, artifacts, run folders, spools, reports.

    From then on, nothing of them is stored. Versions that were trained on their data are recalled: no further version is trained from them,
    but they serve until a new version replaces them or until they are rolled back. An open cycle whose plan contains such data ends. The
    receipt is stored in RATCHET_HOME/erasures, and also in the database of the ledger if that is Postgres. Repeat the command after an
    interruption. An id on the command line is visible in the list of processes and in the history of the shell; --users-file avoids both.
    """
    if receipts:
        if users or sessions or users_file or dry_run or roll_back:
            raise ConfigError("--receipts shows all receipts and erases nothing; leave the other options out")
        _show_receipts(as_json)
        return
    named = {f"--user {place}": one for place, one in enumerate(users, 1)} | _listed(users_file)
    talks = {f"--session {place}": one for place, one in enumerate(sessions, 1)}
    if not any(map(person_id, (*named.values(), *talks.values()))):
        raise ConfigError("name at least one person: --user, --users-file or --session")
    with watched(as_json, "looking for the data …") as progress:
        from ratchet.flows.service.erase import LineEraser, erase_people, lines_of, pseudonyms_of, roll_back_recalled, rows_by_person
        from ratchet.flows.service.receipts import receipt_text
        from ratchet.materializer.erasure.lake_rows import Target

        installation = existing(open_installation(progress))
        if not lines_of(installation):
            raise unknown_line(installation.home, [], None)  # in a wrong folder, a receipt would say that the erasure was done
        people = pseudonyms_of(installation, named.values(), talks.values())
        each = {place: pseudonyms_of(installation, [one], ()).users for place, one in named.items()}
        each |= {place: pseudonyms_of(installation, (), [one]).sessions for place, one in talks.items()}
        if dry_run:
            target = Target(people.users, people.sessions)
            found = [LineEraser(installation, line, target).preview() for line in lines_of(installation)]
            by_person: Mapping[str, int] = rows_by_person(installation, people)
        else:
            receipt = erase_people(installation, people, lambda step: progress(step, 0, 0))
            by_person = receipt.found
            done = [text for one in receipt.lines for text in (roll_back_recalled(installation, one.line, by) if roll_back else ())]
    ids = {place: sum(by_person.get(name, 0) for name in names) for place, names in each.items()}
    if dry_run:
        if as_json:
            print_json({"lines": [one.model_dump(mode="json") for one in found], "ids": ids})
            return
        _show(ids)
        rows = [[one.line, *(one.rows.get(name, 0) for name in ("traces", "feedback", "quarantine", "artifacts"))] for one in found]
        table("Rows that would be removed", ["line", "traces", "feedback", "quarantine", "artifacts"], rows)
        for one in found:
            for version in one.recalled:
                say(f"{one.line}: {version.tag} would be recalled{' (champion)' if version.champion else ''}; {version.clean} is clean")
            if one.cycle:
                say(f"{one.cycle} would end as recalled")
        return
    if as_json:
        print_json(receipt.model_dump(mode="json") | {"ids": ids})
        return
    show(receipt_text(receipt))
    _show(ids)
    for text in done:
        say(text)


def _show_receipts(as_json: bool) -> None:
    with watched(as_json, "looking for the receipts …") as progress:
        from ratchet.flows.service.erase import lines_of
        from ratchet.flows.service.receipts import Receipts, receipt_text

        installation = existing(open_installation(progress))
        found = Receipts(installation.home).all()
        if not found and not lines_of(installation):
            raise unknown_line(installation.home, [], None)  # an empty list would say that nobody was erased
    if as_json:
        print_json({"receipts": [receipt.model_dump(mode="json") for receipt in found]})
        return
    show("\n".join(receipt_text(receipt) for receipt in found) or "no person was erased\n")


def _show(ids: Mapping[str, int]) -> None:
    """Show how many rows were found for each id, which is named by its place, because output may be kept longer than the data."""
    table("Rows that name each id", ["id", "rows"], [[place, rows or "none: check its spelling"] for place, rows in ids.items()])


def _listed(path: Path | None) -> dict[str, str]:
    """Return the ids in the file by their place in it."""
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "it does not exist" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {why}; give a UTF-8 file with one id per line") from error
    return {f"{path.name}:{number}": line.strip() for number, line in enumerate(lines, 1) if person_id(line)}
