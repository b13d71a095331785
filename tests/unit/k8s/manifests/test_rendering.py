"""Tests of the rendered manifests: golden files, validation by their own models, and rules that hold for every manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.loop import Loop
from ratchet.flows.cli.setup.check import _jobs as jobs
from ratchet.flows.composition.cluster import cluster_site, render_cluster
from ratchet.flows.composition.extensions import open_trainers
from ratchet.flows.composition.samples import samples
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop, parse_loop
from ratchet.k8s.manifests.environment import Extras, extras, reminders, render_environment
from ratchet.k8s.manifests.gang_manifest import GANG, ROOT_CAPABILITIES
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import Shape, manifest
from ratchet.k8s.manifests.policies import security_level
from ratchet.k8s.manifests.pools import Account, dynamic_pool, node_class, queue, static_pool
from ratchet.k8s.manifests.render import as_yaml
from ratchet.k8s.manifests.serving import ModelServer, judge_fleet
from ratchet.k8s.manifests.version_server import version_server
from ratchet.k8s.profiles.profile import Profile, known, load_profile
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.k8s.golden import agrees
from tests.unit.k8s.samples import BUCKET, gang, job, serving_site, settings, version

REPO = Path(__file__).resolve().parents[4]
EXAMPLE = REPO / "loops" / "07-team-cluster"
PROFILES = ["aws-p4d-efa", "aws-p5en-efa", "cpu", "generic-gpu", "gke-a3", "gke-a4-rdma"]
ACCOUNT = Account(cluster="prod", ami="al2023@v20260901")


def pooled(name: str, kind: str) -> Profile:
    """Return a profile for which a pool of this kind can be rendered."""
    profile = load_profile(name)
    return profile if kind == "none" or profile.provider == "aws" else profile.model_copy(update={"node_class": "a.b/Kind/name"})


def everything(name: str) -> Iterator[Shape]:
    """Yield every object that is ever rendered for a profile."""
    for kind in ("none", "static", "dynamic"):
        chosen, profile = settings(profile=name, pool={"kind": kind}), pooled(name, kind)
        judge = (Path("/fsx/judge"), ModelServer("vllm:1", gpus=min(1, profile.gpus), most=3, metric="waiting"))
        yield from (one.shape for one in render_environment(chosen, profile, Extras(ACCOUNT, judge=judge)))
        if kind == "static":
            yield static_pool("a-gang", 2, chosen, profile)
    yield from version_server(version(), serving_site(profile=load_profile(name), gpus=0), 2)
    yield gang_network_policy("a-gang", "ratchet")
    if not load_profile(name).root:
        shared = settings(volume=BUCKET)
        yield gang_network_policy("a-gang", "ratchet", shared.volume.bucket)
        yield gang(name, job(gpus=load_profile(name).gpus), volume=BUCKET)
    yield from (gang(name, job(gpus=load_profile(name).gpus, nemo=nemo)) for nemo in (False, True))


def test_the_known_profiles_have_notes() -> None:
    assert known() == PROFILES
    assert all(load_profile(name).notes for name in PROFILES)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("nemo", [False, True], ids=["torchrun", "ray"])
def test_gangs_match_their_golden_files(name: str, nemo: bool) -> None:
    agrees(f"{name}.{'ray' if nemo else 'torchrun'}.yaml", as_yaml(gang(name, job(gpus=load_profile(name).gpus, nemo=nemo))))


def test_a_gang_with_a_bucket_matches_its_golden_file() -> None:
    shared = settings(volume=BUCKET).volume.bucket
    made = gang("generic-gpu", volume=BUCKET), gang_network_policy("a-gang", "ratchet", shared)
    agrees("bucket.yaml", "---\n".join(as_yaml(one) for one in made))


def test_a_gang_with_a_volume_has_no_settings_of_a_bucket() -> None:
    """The gang's name is a digest of its manifest, so an upgrade must not change the manifests of running gangs."""
    assert "RATCHET_BUCKET" not in as_yaml(gang("generic-gpu"))
    assert "RATCHET_SPEC" not in as_yaml(gang("generic-gpu"))


@pytest.mark.parametrize("name", PROFILES)
def test_environments_match_their_golden_files(name: str) -> None:
    kind = "dynamic" if load_profile(name).provider == "aws" else "none"
    chosen, profile = settings(profile=name, pool={"kind": kind, "zone": "us-east-1a"}), load_profile(name)
    rendered = render_environment(chosen, profile, Extras(ACCOUNT))
    agrees(f"{name}.environment.yaml", "---\n".join(as_yaml(one.shape) for one in rendered))


def test_servers_and_a_static_pool_match_their_golden_file() -> None:
    chosen, profile = settings(profile="aws-p5en-efa", pool={"kind": "static"}), load_profile("aws-p5en-efa")
    server = ModelServer("vllm:1", gpus=2, replicas=2, most=4, metric="vllm_requests_waiting")
    made = [static_pool("a-gang", 4, chosen, profile), *judge_fleet(Path("/fsx/judge"), chosen, profile, server)]
    made += version_server(version(), serving_site(profile=profile), 3)
    agrees("servers.yaml", "---\n".join(as_yaml(one) for one in made))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_every_object_accepts_its_own_output_and_refuses_unknown_keys(name: str) -> None:
    for shape in everything(name):
        body = yaml.safe_load(as_yaml(shape))
        assert manifest(type(shape).model_validate(body)) == manifest(type(shape).model_validate(manifest(shape)))
        with pytest.raises(ValidationError):
            type(shape).model_validate(body | {"spek": {}})


@pytest.mark.parametrize("name", PROFILES)
def test_manifests_never_contain_secret_values(name: str) -> None:
    """Manifests contain only the names of Secrets and of their keys. A variable from a Secret has no literal value."""
    for shape in everything(name):
        assert shape.model_dump().get("kind") != "Secret"
        for variable in _inside(manifest(shape), "env"):
            if re.search(r"TOKEN(?!IZERS|_PATH)|PASSWORD|SECRET|_KEY", variable["name"]):
                assert "value" not in variable
                assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}


def test_a_value_in_place_of_a_reference_is_refused() -> None:
    with pytest.raises(ValidationError, match="never a value"):
        settings(secrets={"REWARD_API_KEY": "sk-123"})


@pytest.mark.parametrize("name", PROFILES)
def test_every_pod_has_the_security_defaults(name: str) -> None:
    profile = load_profile(name)
    for shape in everything(name):
        for pod in _pods(manifest(shape)):
            assert pod["automountServiceAccountToken"] is False
            assert pod["serviceAccountName"] in ("ratchet-job", "ratchet-model")
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            root = "runAsNonRoot" not in pod["securityContext"]
            assert pod["securityContext"]["runAsUser"] == (0 if root else profile.user)
            assert pod["securityContext"]["runAsGroup"] == pod["securityContext"]["fsGroup"] == profile.user
            for container in pod["containers"]:
                security = container["securityContext"]
                assert security["capabilities"]["drop"] == ["ALL"]
                assert security["allowPrivilegeEscalation"] is False
                assert set(security["capabilities"].get("add", [])) <= {*profile.capabilities, *(ROOT_CAPABILITIES if root else ())}
                assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("nemo", [False, True], ids=["torchrun", "ray"])
def test_pods_run_as_root_where_the_profile_or_the_image_needs_it(name: str, nemo: bool) -> None:
    """NeMo RL's image keeps Python below /root, which an ordinary user cannot enter."""
    profile = load_profile(name)
    (task, *_) = gang(name, job(gpus=profile.gpus, nemo=nemo)).spec.tasks
    user = task.template.spec.security_context
    add = task.template.spec.containers[0].security_context.capabilities.add or ()
    assert user.run_as_user == (0 if nemo or profile.root else profile.user)
    assert (user.run_as_non_root or False) == (user.run_as_user != 0)
    assert user.run_as_group == profile.user, "the service must be able to use the files of the pod"
    assert ({"DAC_OVERRIDE", "FOWNER"} <= set(add)) == (user.run_as_user == 0), "root without them cannot write the service's folders"


def variables(name: str, nemo: bool = False) -> dict[str, str]:
    """Return the variables with a literal value of the first pod of a gang."""
    (task, *_) = gang(name, job(gpus=load_profile(name).gpus, nemo=nemo)).spec.tasks
    return {one.name: one.value for one in task.template.spec.containers[0].env if one.value is not None}


@pytest.mark.parametrize("name", PROFILES)
def test_the_library_path_of_an_image_is_never_replaced(name: str) -> None:
    assert "LD_LIBRARY_PATH" not in variables(name)
    assert variables(name).get("RATCHET_LIBRARY_PATH", "") == ":".join(load_profile(name).library_path)
    with pytest.raises(ValidationError, match="library_path"):
        Profile.model_validate({"provider": "any", "cpu": "1", "memory": "1Gi", "environment": {"LD_LIBRARY_PATH": "/x"}})


@pytest.mark.parametrize(("name", "net"), [("aws-p4d-efa", "AWS Libfabric"), ("aws-p5en-efa", "AWS Libfabric"), ("gke-a4-rdma", "gIB")])
def test_a_fabric_profile_mounts_its_plugin_and_does_not_fall_back_to_tcp(name: str, net: str) -> None:
    found = variables(name)
    assert found["NCCL_NET"] == net
    (task, *_) = gang(name).spec.tasks
    mounted = [mount.mount_path for mount in task.template.spec.containers[0].volume_mounts if mount.read_only]
    plugins = [folder for folder in found["RATCHET_LIBRARY_PATH"].split(":") if not folder.startswith("/usr/local/nvidia")]
    assert plugins
    for path in [*plugins, *filter(None, [found.get("RATCHET_ENVIRONMENT_SCRIPT"), found.get("NCCL_TUNER_CONFIG_PATH")])]:
        assert any(Path(path).is_relative_to(folder) for folder in mounted), path


@pytest.mark.parametrize("nemo", [False, True], ids=["torchrun", "ray"])
def test_of_the_volume_a_pod_sees_its_inputs_read_only_and_its_run_folder(nemo: bool) -> None:
    spec = job(nemo=nemo).model_copy(update={"inputs": {"model": "a" * 64, "pairs.parquet": "b" * 64}})
    plan = Path("/fsx/home/jobs") / spec.plan
    run = plan / "a1"
    for task in gang(spec=spec).spec.tasks:
        (container,) = task.template.spec.containers
        seen = {Path(mount.mount_path): mount for mount in container.volume_mounts if mount.name == "shared"}
        assert {path: bool(mount.read_only) for path, mount in seen.items()} == {
            plan: True,
            run: False,
            run / "plan.json": True,
            run / "model": True,
            run / "pairs.parquet": True,
        }
        assert all(path == Path("/fsx") / str(mount.sub_path) for path, mount in seen.items())
        assert {one.name: one.value for one in container.env}["RATCHET_ARTIFACTS"] == str(run / "drop")


@pytest.mark.parametrize("nemo", [False, True], ids=["torchrun", "ray"])
def test_caches_are_on_the_disk_of_the_pod(nemo: bool) -> None:
    found = variables("generic-gpu", nemo)
    caches = ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
    assert all(Path(found[name]).is_relative_to("/tmp") for name in caches)
    assert ("RAY_memory_monitor_refresh_ms" in found, "RAY_worker_register_timeout_seconds" in found) == (nemo, nemo)


@pytest.mark.parametrize("name", PROFILES)
def test_only_profiles_that_run_as_root_add_capabilities(name: str) -> None:
    profile = load_profile(name)
    assert bool(profile.capabilities) <= bool(profile.root)


@pytest.mark.parametrize(
    ("changes", "volume", "level"),
    [
        ({}, {"claim": "shared"}, "restricted"),
        ({}, {"bucket": {"url": "s3://models"}}, "restricted"),
        ({"root": "why"}, {"claim": "shared"}, "baseline"),
        ({}, {"host_path": True}, "privileged"),
        ({"capabilities": ("IPC_LOCK",)}, {"claim": "shared"}, "privileged"),
        ({"mounts": ("/opt/x",)}, {"claim": "shared"}, "privileged"),
        ({"host_network": "why"}, {"claim": "shared"}, "privileged"),
    ],
)
def test_the_namespace_has_the_strictest_possible_security_level(changes: dict[str, Any], volume: dict[str, Any], level: str) -> None:
    profile = load_profile("cpu").model_copy(update=changes)
    assert security_level(settings(volume={"mount": "/fsx"} | volume, nemo_image=None), profile) == level
    if level == "restricted":
        assert security_level(settings(volume={"mount": "/fsx"} | volume), profile) == "baseline", "NeMo RL's pods run as root"


def test_the_limit_of_a_queue_is_whole_nodes() -> None:
    spec = queue(settings(pool={"max_nodes": 3}), load_profile("aws-p5en-efa")).spec
    assert spec.capability == {"cpu": "528", "memory": "4800Gi", "vpc.amazonaws.com/efa": "48", "nvidia.com/gpu": "24"}
    assert not spec.reclaimable


def test_pools_disrupt_no_nodes_and_set_no_do_not_disrupt() -> None:
    chosen, profile = settings(profile="aws-p5en-efa", pool={"kind": "dynamic", "max_nodes": 2, "zone": "z"}), load_profile("aws-p5en-efa")
    grown, fixed = dynamic_pool(chosen, profile), static_pool("g", 2, chosen, profile)
    assert (grown.spec.limits, grown.spec.replicas) == ({"nvidia.com/gpu": "16"}, None)
    assert (fixed.spec.limits, fixed.spec.replicas) == ({"nodes": "2"}, 2)
    assert fixed.spec.template.metadata.labels[GANG] == "g"
    for pool in (grown, fixed):
        spec = pool.spec.template.spec
        assert {one.key: one.values for one in spec.requirements} == {
            "karpenter.sh/capacity-type": ("spot",),
            "node.kubernetes.io/instance-type": ("p5en.48xlarge",),
            "topology.kubernetes.io/zone": ("z",),
        }
        assert [taint.key for taint in spec.taints] == ["nvidia.com/gpu"]
        assert pool.spec.disruption.budgets[0].nodes == "0"
        assert "do-not-disrupt" not in pool.model_dump_json()
    assert "do-not-disrupt" not in gang("aws-p5en-efa").model_dump_json()


def test_reserved_capacity_uses_the_reservations_and_nothing_else() -> None:
    profile, pool = load_profile("aws-p5en-efa"), {"kind": "dynamic", "capacity": "reserved", "zones": ["a", "b"]}
    chosen = settings(profile="aws-p5en-efa", pool=pool)
    for made in (dynamic_pool(chosen, profile), static_pool("g", 2, chosen, profile)):
        asked = {one.key: one.values for one in made.spec.template.spec.requirements}
        assert asked["karpenter.sh/capacity-type"] == ("reserved",)
        assert asked["topology.kubernetes.io/zone"] == ("a", "b")
    given = replace(ACCOUNT, reservations=("cr-1", "cr-2"))
    terms = node_class(chosen, profile, given).spec.capacity_reservation_selector_terms or ()
    assert [one.id for one in terms] == ["cr-1", "cr-2"]
    absent = node_class(chosen, profile, replace(ACCOUNT, reservations=())).spec.capacity_reservation_selector_terms or ()
    assert [one.id for one in absent] == ["REPLACE-ME"]


def test_a_reservation_that_the_pool_would_not_use_is_refused() -> None:
    for capacity in ("spot", "on-demand"):
        chosen = settings(profile="aws-p5en-efa", pool={"kind": "dynamic", "capacity": capacity})
        with pytest.raises(ConfigError, match="would not use the reservation cr-1"):
            node_class(chosen, load_profile("aws-p5en-efa"), replace(ACCOUNT, reservations=("cr-1",)))


@pytest.mark.parametrize("pool", [{"zone": "a", "zones": ["b"]}, {"zones": ["a", "a"]}])
def test_zones_are_named_in_one_way(pool: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="zone"):
        settings(pool=pool)


def test_every_network_card_has_an_adapter_and_pods_request_all() -> None:
    for name in ("aws-p4d-efa", "aws-p5en-efa"):
        profile = load_profile(name)
        interfaces = node_class(settings(profile=name), profile, ACCOUNT).spec.network_interfaces or ()
        fabric = [one.network_card_index for one in interfaces if one.interface_type == "efa-only"]
        assert fabric == list(range(profile.network_cards))
        assert profile.resources == {"vpc.amazonaws.com/efa": str(len(fabric))}
        assert len({(one.network_card_index, one.device_index) for one in interfaces}) == len(interfaces)


def test_settings_that_do_not_fit_are_refused_with_a_remedy() -> None:
    profile = load_profile("gke-a3")
    with pytest.raises(ConfigError, match=r"cluster\.pool\.kind = static.*node_class"):
        render_environment(settings(profile="gke-a3", pool={"kind": "static"}), profile)
    with pytest.raises(ConfigError, match="max_nodes = 8; raise it"):
        static_pool("g", 9, settings(profile="aws-p5en-efa"), load_profile("aws-p5en-efa"))
    with pytest.raises(ConfigError, match="below the volume"):
        judge_fleet(Path("/models/judge"), settings(), load_profile("generic-gpu"), ModelServer("vllm:1"))
    with pytest.raises(ConfigError, match=r"cluster\.volume\.bucket: servers on the cluster"):
        judge_fleet(Path("/ratchet/judge"), settings(volume=BUCKET), load_profile("generic-gpu"), ModelServer("vllm:1"))
    with pytest.raises(ConfigError, match=r"cluster\.volume\.bucket: NeMo RL's nodes write one checkpoint together"):
        gang("generic-gpu", job(nemo=True), volume=BUCKET)
    with pytest.raises(ConfigError, match="16 GPUs does not fit"):
        judge_fleet(Path("/fsx/judge"), settings(), load_profile("generic-gpu"), ModelServer("vllm:1", gpus=16))
    with pytest.raises(ConfigError, match="needs a metric"):
        judge_fleet(Path("/fsx/judge"), settings(), load_profile("generic-gpu"), ModelServer("vllm:1", most=3))
    with pytest.raises(ConfigError, match="both the folder"):
        extras(judge="/fsx/judge")


def test_a_node_class_has_three_parts() -> None:
    with pytest.raises(ValidationError, match="group/kind/name"):
        Profile.model_validate({"provider": "any", "cpu": "1", "memory": "1Gi", "node_class": "KWOKNodeClass/default"})


def test_reminders_name_the_parts_that_cannot_be_rendered() -> None:
    chosen, profile = settings(profile="aws-p5en-efa", pool={"kind": "static"}), load_profile("aws-p5en-efa")
    said = "\n".join(reminders(chosen, profile, Extras(), nemo=True))
    for words in ("Secret reward-api with the key key", "Secret ratchet-ray", "--storage-class", "--eks NAME --ami", "StaticCapacity"):
        assert words in said
    over_a_bucket = "\n".join(reminders(settings(volume=BUCKET), load_profile("generic-gpu"), Extras(), nemo=False))
    assert "s3://models/ratchet, with a rule that aborts incomplete multipart uploads" in over_a_bucket
    assert "--storage-class" not in over_a_bucket
    assert "--eks" not in "\n".join(reminders(chosen, profile, Extras(ACCOUNT), nemo=False))


@pytest.fixture
def example() -> Loop:
    """Return the example loop for a cluster."""
    return load_loop(EXAMPLE / "loop.toml")


@pytest.mark.slow
def test_the_example_loop_renders_its_manifests(example: Loop, tmp_path: Path) -> None:
    whole = render_cluster(example, EXAMPLE, Home(tmp_path), "all", eks="prod", ami="al2023@v20260901")
    documents = [document for document in yaml.safe_load_all(whole) if document]
    kinds = [document["kind"] for document in documents]
    assert kinds[0] == "Namespace"
    assert kinds.count("Job") == 2
    assert [task["name"] for task in documents[-1]["spec"]["tasks"]] == ["head", "worker"]
    parts = [render_cluster(example, EXAMPLE, Home(tmp_path), part, eks="prod", ami="al2023@v20260901") for part in ("admin", "gang")]
    assert [one for part in parts for one in yaml.safe_load_all(part) if one] == documents
    for document in documents:
        by = "the service, per gang" if document["metadata"]["name"].startswith("rt-") else "an administrator, once"
        assert re.search(rf"# {document['kind']} {document['metadata']['name']}: .*Applied by {by}\.", whole)


def test_ratchet_home_decides_the_folder_of_the_jobs(example: Loop, tmp_path: Path) -> None:
    site, _ = cluster_site(example, REPO, Home(Path("/fsx/prod")))
    assert site.root == Path("/fsx/prod/lines/support/jobs")
    site, _ = cluster_site(example, REPO, Home(tmp_path))
    assert site.root.is_relative_to("/fsx")


SHAPES = [
    ("sft", {"batch": 24}, {}, "batch 24 is not a multiple of the 16 GPUs"),
    ("sft", {"batch": 32}, {"nodes": 3}, "set batch to 48"),
    ("grpo", {"prompts_per_step": 8}, {"nodes": 3, "grpo_on": "nemo-rl"}, "set prompts_per_step = 9"),
]


@pytest.mark.parametrize(("method", "changes", "settings", "remedy"), SHAPES)
def test_a_method_whose_batch_the_machines_cannot_divide_is_refused_with_the_remedy(
    example: Loop, tmp_path: Path, method: str, changes: dict[str, Any], settings: dict[str, Any], remedy: str
) -> None:
    training = example.training.model_copy(update={"methods": (method,), method: changes, **settings})
    loop = example.model_copy(update={"training": training})
    for part in ("gang", "all"):
        with pytest.raises(ConfigError, match=f"no gang for {method}: .*{remedy}"):
            render_cluster(loop, EXAMPLE, Home(tmp_path), part)
    assert "kind: Namespace" in render_cluster(loop, EXAMPLE, Home(tmp_path), "admin")


NAMES_NO_BATCH = [
    ("sft", "trl", "batch", 48), ("dpo", "trl", "batch", 32), ("grpo", "nemo-rl", "prompts_per_step", 9),
    ("sft", "nemo-rl", "batch", 48), ("dpo", "nemo-rl", "batch", 48),
]  # fmt: skip


@pytest.mark.parametrize(("method", "on", "key", "value"), NAMES_NO_BATCH)
def test_a_loop_file_without_batches_renders_and_checks_for_three_nodes_of_eight_gpus(
    example: Loop, tmp_path: Path, method: str, on: str, key: str, value: int
) -> None:
    data = example.model_dump(mode="json") | {
        "training": {"methods": [method], f"{method}_on": on, "nodes": 3, "gpus": 8, method: {"steps": 9}}
    }
    loop = parse_loop(data, "loop.toml")
    trainers = open_trainers(loop)
    [sample] = samples(loop, trainers)
    assert (sample.problem, trainers[Method(method)].recipe(loop.training.recipe(method))[key]) == ("", value)
    assert "kind: Job" in render_cluster(loop, EXAMPLE, Home(tmp_path), "gang")
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    assert jobs(replace(context, loop=loop, trainers=trainers)) == []


def test_rendering_without_a_cluster_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no section \[cluster\]"):
        render_cluster(load_loop(REPO / "flows" / "demo" / "demo.toml"), EXAMPLE, Home(tmp_path), "all")


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    yield from (template["spec"] for template in _inside([value], "template") if "containers" in template.get("spec", {}))


def _inside(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield every object under `key`, at any depth."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key:
                yield from item if isinstance(item, list) else [item]
            yield from _inside(item, key)
    if isinstance(value, list):
        for item in value:
            yield from _inside(item, key)


@pytest.mark.parametrize(("ours", "theirs", "given"), [(110, 60, 110), (110, 300, 300), (15, 60, 60), (90, 5, 90)])
def test_a_pod_has_the_longer_grace_of_profile_and_recipe(ours: int, theirs: int, given: int) -> None:
    profile = load_profile("generic-gpu").model_copy(update={"grace": ours})
    spec = job(gpus=profile.gpus).model_copy(update={"grace_seconds": theirs})
    assert {task.template.spec.termination_grace_period_seconds for task in gang(profile, spec).spec.tasks} == {given}
