"""Tests of the parts of the test cluster that need no running cluster: names, ports, images, certificates and the search for programs."""

from __future__ import annotations

import io
import ipaddress
import json
import re
import socket
import ssl
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.flows.cli.admin import dev
from tests.cluster.rig import build, images
from tests.cluster.rig.build import RigError
from tests.cluster.rig.certificates import Authority, write_kubeconfig
from tests.cluster.rig.plane import CONTROLLERS, INSTANCES
from tests.cluster.rig.processes import Processes
from tests.cluster.rig.site import PORTS, Site, name_of
from tests.waiting import until
from tests.zombie_leader import zombie_leader


def test_two_folders_share_no_name_port_or_network(tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")]
    one, other = (Site.choose(folder) for folder in folders)
    assert one.name != other.name
    assert len(one.name) <= 15, "the name of a network interface has at most 15 characters"
    assert not ipaddress.ip_network(one.subnet).overlaps(ipaddress.ip_network(other.subnet))
    assert len(set(one.ports.values())) == len(PORTS)
    assert Site.of(folders[0]) == one
    assert Site.of(folders[0].parent) is None


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="shorter --folder"):
        Site.choose(tmp_path / ("x" * 80))


def test_the_name_depends_only_on_the_folder(tmp_path: Path) -> None:
    assert name_of(tmp_path) == name_of(Path(str(tmp_path)))


def test_a_process_is_alive_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = Processes(tmp_path)
    processes.start("server", zombie_leader(port))
    stat = Path(f"/proc/{processes.pid('server')}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert processes.alive("server")
    processes.end("server")
    assert not processes.alive("server")
    socket.create_server(("127.0.0.1", port)).close()


def test_a_connection_with_the_certificates_succeeds(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    authority.issue("server", "server", addresses=("127.0.0.1",))
    authority.issue("admin", "admin", group="system:masters")
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    serving.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    serving.load_verify_locations(tmp_path / "ca.crt")
    serving.verify_mode = ssl.CERT_REQUIRED
    asking.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
    subject = _shake(asking, serving)
    assert (("organizationName", "system:masters"),) in subject
    assert (tmp_path / "admin.key").stat().st_mode & 0o077 == 0
    write_kubeconfig(tmp_path / "kubeconfig", tmp_path, "https://127.0.0.1:1")
    assert json.loads((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"


def _shake(asking: ssl.SSLContext, serving: ssl.SSLContext) -> tuple:
    """Perform a handshake in memory and return the client's name as the server sees it."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname="127.0.0.1")
    server = serving.wrap_bio(there, back, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    assert done == {client, server}
    return (server.getpeercert() or {})["subject"]


def test_an_image_is_an_archive_with_the_given_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pause").write_bytes(b"program")
    monkeypatch.setenv("RATCHET_RIG_BIN", str(tmp_path / "bin"))
    pause, host = images.write_images(tmp_path / "images")
    with tarfile.open(pause) as archive:
        manifest = json.loads(archive.extractfile("manifest.json").read())[0]  # type: ignore[union-attr]
        layer = archive.extractfile(manifest["Layers"][0]).read()  # type: ignore[union-attr]
        config = json.loads(archive.extractfile(manifest["Config"]).read())  # type: ignore[union-attr]
    assert manifest["RepoTags"] == [images.PAUSE]
    assert config["config"]["Entrypoint"] == ["/pause"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.extractfile("pause").read() == b"program"  # type: ignore[union-attr]
        assert tar.getmember("pause").mode == 0o755
    assert host.exists()


def test_given_programs_take_precedence_over_built_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RATCHET_RIG_BIN", raising=False)
    assert build.find("etcd") is None
    with pytest.raises(RigError, match="make rig"):
        build.need("etcd")
    kept = build.home("etcd") / "etcd"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert build.need("etcd") == kept
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "etcd").touch()
    monkeypatch.setenv("RATCHET_RIG_BIN", str(tmp_path / "given"))
    assert build.need("etcd") == tmp_path / "given" / "etcd"


def test_without_go_the_missing_parts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RATCHET_RIG_BIN", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RigError, match=r"Go is not installed.*kwok"):
        build.build(["kwok"], print)


def test_every_part_is_pinned_with_its_checksums() -> None:
    for part in build.PARTS:
        folder = build.SOURCES / part.component
        pinned = (folder / "go.mod").read_text()
        if part.package != ".":
            assert re.search(rf"(?m)^((tool )?\s*{part.package}|(require)?\s*{part.package} v\S+.*)$", pinned), part
            assert (folder / "go.sum").read_text()


def test_the_autoscaler_can_launch_machines_with_and_without_gpus() -> None:
    assert [machine["resources"].get("nvidia.com/gpu") for machine in INSTANCES] == ["8", None]
    assert "node-lifecycle-controller" in CONTROLLERS, "only this controller removes the not-ready taint of a new node"


def test_outside_a_checkout_the_command_fails_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "CHECKOUT", tmp_path)
    answer = CliRunner().invoke(dev.dev, ["cluster", "status"])
    assert "source checkout" in str(answer.exception)
