"""A model is adopted by its name from a hub on loopback, served, and explained; another licence, revision or model is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.flows.config.home import Home
from tests import command
from tests.hub import COMMIT, hub_of
from tests.toy_line import LINE, write_loop, write_model

pytestmark = [pytest.mark.slow]
NAME = "hub:org/tiny@main"


def test_a_model_is_adopted_by_name(tmp_path: Path) -> None:
    home, loop = Home(tmp_path / "home"), write_loop(tmp_path)
    (tmp_path / "made").mkdir()
    model = write_model(tmp_path / "made")
    (model / "LICENSE").write_text("Apache License\n")
    (model / "training_args.bin").write_bytes(b"pickle")
    with hub_of(model) as hub:
        hub.token = "a-token-of-this-test"
        settings = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "TEAM_TOKEN": hub.token}

        def adopt(*options: str, name: str = NAME) -> tuple[int, str]:
            done = command.ratchet("adopt", loop, name, "--token-env", "TEAM_TOKEN", "--by", "ada", *options, home=home.root, **settings)
            return done.returncode, done.stdout + done.stderr

        code, told = adopt()
        assert code != 0
        assert "licence apache-2.0" in told
        assert "pass --accept-licence 'apache-2.0'" in told
        assert "not downloaded: training_args.bin" in told
        assert adopt("--accept-licence", "mit")[0] != 0
        assert hub.sent == [], "nothing is downloaded before the licence is accepted"

        code, told = adopt("--accept-licence", "apache-2.0")
        assert code == 0, told
        assert "adopted by ada as version 0; served as" in told
        assert hub.token not in told
        assert not (home.root / "hub" / LINE).exists(), "the artifacts have the model"
        sent = len(hub.sent)
        assert adopt("--accept-licence", "apache-2.0")[0] == 0, "adopting the same commit again changes nothing"
        assert len(hub.sent) == sent
        card = command.ratchet("model", "card", LINE, home=home.root).stdout
        assert f"org/tiny at commit {COMMIT} (main)" in card
        assert "licence apache-2.0" in card
    rows = command.ratchet("history", LINE, "--json", home=home.root).stdout
    assert hub.token not in rows
    stopped = command.ratchet("serve", "--stop", loop, home=home.root)
    assert stopped.returncode == 0, stopped.stderr
    for path in home.root.rglob("*"):
        assert not path.is_file() or hub.token.encode() not in path.read_bytes(), f"{path} contains the token"
    assert json.loads(rows) is not None
