"""Executes the definition of a container image without a container engine: its steps as a shell script for a bare system.

The base image is the bare system in which the script runs. It understands only the instructions that the project's definitions use.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from tests.cluster.rig.build import RigError

_NAME = re.compile(r"\$\{(\w+)\}")


def shell_of(text: str, arguments: Mapping[str, str]) -> str:
    """Return a shell script with the steps of a definition. `arguments` are build arguments; FROM is left out.

    The script is run in the root of the build context, as root. It ends as the image's user: what follows it runs with the rights of a
    container. Raises RigError for an instruction that is not understood.
    """
    known, script, user = dict(arguments), ["set -eu"], ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "ARG":
            name, has_value, value = rest.partition("=")
            if has_value:
                known.setdefault(name, value)
        elif word == "ENV":
            script += [f"export {one}" for one in rest.split()]
        elif word == "COPY":
            *sources, target = _NAME.sub(lambda found: known.get(found[1], found[0]), rest).split()
            script.append(f"mkdir -p {shlex.quote(target if target.endswith('/') else target.rpartition('/')[0])}")
            script += [f"cp -r {source} {target}" for source in sources]
        elif word == "RUN":
            script.append(_NAME.sub(lambda found: known.get(found[1], found[0]), rest))
        elif word == "USER":
            user = rest.partition(":")[0]
        elif word not in ("FROM", "WORKDIR", "ENTRYPOINT", "CMD"):
            raise RigError(f"the instruction {word} of the definition is not understood")
    return "\n".join([*script, f"USER_OF_IMAGE={user or 0}"])
