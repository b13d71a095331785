"""Prints the commands that build and push the images. No I/O."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple


class Image(NamedTuple):
    """One image of an installation."""

    name: str
    definition: str
    """File name of its definition in this package."""
    used_as: str
    """Where an installation names it."""
    arguments: tuple[str, ...] = ()
    """Build arguments that the operator must choose."""


DIGEST = "BASE_DIGEST=sha256:DIGEST"
CONTROL_PLANE = "control-plane.Dockerfile"
WITH_RAY = "PACKAGES=pods_ray"
IMAGES = (
    Image("ratchet", CONTROL_PLANE, "image.repository of the chart, serving.options.fetch_image", (DIGEST,)),
    Image("ratchet-trainer", "trainer.Dockerfile", "cluster.image, and serving.options.image for the embedded server", (DIGEST,)),
    Image(
        "ratchet-nemo",
        "nemo.Dockerfile",
        "cluster.nemo_image, only with a method on nemo-rl (for example training.grpo_on); you accept the licence of its base",
        ("BASE_IMAGE=NEMO_RL_IMAGE", DIGEST),
    ),
)
BY_REFERENCE = ("vllm/vllm-openai:RELEASE", "serving.options.image")
"""The image of vLLM, which is used as its project publishes it, and where an installation names it."""


def definition(image: Image) -> str:
    """Return the text of an image's definition."""
    return (resources.files("ratchet.k8s.images") / image.definition).read_text(encoding="utf-8")


def build_commands(registry: str, tag: str, builder: str, ray: bool = False) -> list[str]:
    """Return the lines of a shell script that builds and pushes all images, with comments. `builder` is docker, podman or buildah.

    With `ray`, the image of the control plane has Ray, for `compute.engine = "ray"`.
    The lines are run in the root of a clone, because the images are built from its lock files.
    """
    lines = [
        "# Run in the root of a clone of this release. Replace DIGEST by the digest of the base that you have checked.",
        "python3 -m pip wheel --no-deps --wheel-dir dist .",
    ]
    build = "buildah build" if builder == "buildah" else f"{builder} build"
    for image in IMAGES:
        reference = f"{registry}/{image.name}:{tag}"
        given = (*image.arguments, *((WITH_RAY,) if ray and image.definition == CONTROL_PLANE else ()))
        arguments = "".join(f" --build-arg {one}" for one in given)
        lines += [
            "",
            f"# {image.used_as}",
            f"{build} -f k8s/images/{image.definition} -t {reference}{arguments} .",
            f"{builder} push {reference}",
        ]
    return [*lines, "", f"# {BY_REFERENCE[1]}: {BY_REFERENCE[0]}, as the project publishes it; pin its digest"]
