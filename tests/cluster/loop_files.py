"""Parts of loop files and machine profiles for the test cluster."""

from __future__ import annotations

CLUSTER = """
[cluster]
namespace = "{namespace}"
queue = "default"
profile = "machine.toml"
image = "{image}"
python = "{python}"
"""
"""Section [cluster] without its volume."""

SECTION = (
    CLUSTER
    + """\
volume = {{ mount = "{home}", host_path = true }}
"""
)

MACHINE = """
provider = "any"
cpu = "1"
memory = "2Gi"
shm = "256Mi"
labels = {{ "rig.ratchet/node" = "real" }}
mounts = {mounts}
python_path = ["{repo}"]
root = "the files of this machine belong to root"
image_pull = "Never"
"""


def line_of(source: str, **fields: str) -> str:
    """Return a loop file of the line `test` with one source of kind `source`, to which sections can be appended."""
    more = "".join(f'{name} = "{value}"\n' for name, value in fields.items())
    return (
        '[line]\nname = "test"\nserved_model = "test"\n'
        f'[[sources]]\nname = "in"\nkind = "{source}"\n{more}'
        '[[rewards]]\nname = "exact_match"\n'
    )
