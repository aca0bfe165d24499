"""Two thousand items on this machine, with a worker and then the driver killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch.scene import Scene, children, counting_server, eventually, kill

ITEMS = 2000
AT_ONCE = 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_thousand_items_survive_their_workers_and_their_driver(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(ITEMS)
    flags = ["--concurrency", str(AT_ONCE), "--json"]
    with counting_server(0.02) as server:
        driver = scene.start(server.base_url, *flags)
        for share in (5, 3):
            eventually(lambda share=share: len(server.counts()) >= ITEMS // share, 600)
            kill(children(driver.pid)[0])
        eventually(lambda: len(server.counts()) >= ITEMS, 600)
        driver.kill()
        driver.communicate()
        again = scene.run(server.base_url, *flags)

        assert again.returncode == 0, again.stderr
        assert server.extra() <= 3 * AT_ONCE, "more was asked twice than was in flight at the kills"
        assert len(server.counts()) == 2 * ITEMS
    assert json.loads(again.stdout)["statuses"] == {"succeeded": ITEMS}
    assert len(scene.results()) == ITEMS == scene.runs_ended()
