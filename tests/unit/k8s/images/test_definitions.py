"""Structural checks of the definitions of the images, and the commands that build them. A soak test builds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.k8s.images.build_commands import IMAGES, build_commands, definition
from ratchet.k8s.profiles.profile import Profile

ROOT = Path(__file__).resolve().parents[4]
OWN = [image for image in IMAGES if image.name != "ratchet-nemo"]
"""The images whose packages come from a lock file; the other one adds Ratchet to NVIDIA's."""

Steps = list[tuple[str, str]]


def steps_of(text: str) -> Steps:
    """Return the instructions of a definition, with continued lines joined, as (instruction, arguments)."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name.upper(), rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


@pytest.fixture(params=IMAGES, ids=lambda image: image.name)
def steps(request: pytest.FixtureRequest) -> Steps:
    return steps_of(definition(request.param))


@pytest.fixture(params=OWN, ids=lambda image: image.name)
def own(request: pytest.FixtureRequest) -> Steps:
    return steps_of(definition(request.param))


def all_of(steps: Steps, name: str) -> list[str]:
    """Return the arguments of all instructions of one kind."""
    return [rest for instruction, rest in steps if instruction == name]


def test_the_base_is_pinned_by_a_digest_that_has_no_default(steps: Steps) -> None:
    assert all_of(steps, "FROM") == ["${BASE_IMAGE}@${BASE_DIGEST}"]
    assert "BASE_DIGEST" in all_of(steps, "ARG")


def test_every_package_is_checked_by_hash_or_comes_from_the_build_context(own: Steps) -> None:
    installs = [part for run in all_of(own, "RUN") for part in run.split("&&") if "pip install" in part]
    assert len(installs) == 2
    for install in installs:
        assert "--no-deps --require-hashes -r /opt/ratchet/packages.lock" in install or "--no-deps --no-index" in install


@pytest.mark.parametrize(
    ("lock", "has_torch"), [("train.lock", True), ("grpo_vllm.lock", True), ("pods.lock", False), ("pods_ray.lock", False)]
)
def test_only_the_image_of_jobs_has_torch(lock: str, has_torch: bool) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    assert "--hash=sha256:" in text
    assert bool(re.search(r"^torch==", text, re.MULTILINE)) is has_torch


def test_nothing_is_downloaded_past_the_package_managers(steps: Steps) -> None:
    assert not all_of(steps, "ADD")
    assert not re.search(r"https?://|curl|wget|git clone", "\n".join(rest for _, rest in steps))
    for copied in all_of(steps, "COPY"):
        source = copied.split()[0].replace("${LOCK}", "train.lock").replace("${PACKAGES}", "pods")
        assert source == "dist/*.whl" or (ROOT / source).is_file()


def test_pods_can_run_as_an_ordinary_user(own: Steps) -> None:
    user = Profile.model_fields["user"].default
    assert all_of(own, "USER") == [f"{user}:{user}"]
    last = max(number for number, (name, _) in enumerate(own) if name == "RUN")
    assert [name for name, _ in own].index("USER") > last, "only the build may run as root"
    assert not any("/root" in rest for _, rest in own)


def test_triton_has_a_c_compiler() -> None:
    trainer = steps_of(definition(next(image for image in IMAGES if image.name == "ratchet-trainer")))
    assert any(re.search(r"apt-get install.*\bgcc\b.*\blibc6-dev\b", run) for run in all_of(trainer, "RUN"))


def test_every_image_is_built_from_its_definition_and_pushed() -> None:
    script = build_commands("registry.example/team", "7", "podman")
    for image in IMAGES:
        assert (ROOT / "k8s" / "images" / image.definition).is_file()
        build = next(line for line in script if f"k8s/images/{image.definition}" in line)
        assert build.startswith("podman build -f ")
        assert f"-t registry.example/team/{image.name}:7 --build-arg" in build
        given = set(re.findall(r"--build-arg (\w+)=", build))
        required = {name for name in all_of(steps_of(definition(image)), "ARG") if "=" not in name}
        assert given == required, "every build argument without a default is given"
        assert f"podman push registry.example/team/{image.name}:7" in script


def test_the_image_of_the_control_plane_has_ray_only_if_it_is_asked_for() -> None:
    def given(ray: bool) -> set[str]:
        return {line for line in build_commands("registry.example/team", "7", "docker", ray) if "PACKAGES=pods_ray" in line}

    [build] = given(ray=True)
    assert "control-plane.Dockerfile" in build
    assert given(ray=False) == set()
    locks = {name: (ROOT / "requirements" / f"{name}.lock").read_text() for name in ("pods", "pods_ray")}
    pins = {name: set(re.findall(r"^([a-z0-9_-]+==\S+)", text, re.MULTILINE)) for name, text in locks.items()}
    assert pins["pods"] < pins["pods_ray"], "workers must have the packages of a service without Ray, in the same versions"
    assert {one.partition("==")[0] for one in pins["pods_ray"] - pins["pods"]} == {"grpcio", "msgpack", "ray"}
