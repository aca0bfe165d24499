"""Two thousand items on this machine, with a worker and then the driver killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch.scene import Scene, alive, asked_again, children, counting_server, eventually, kill

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
        landing = children(driver.pid)
        driver.kill()
        driver.communicate()
        eventually(lambda: not any(alive(pid) for pid in landing))
        recorded, asked = scene.replies_on_disk(), server.by_question()
        again = scene.run(server.base_url, *flags)

        assert again.returncode == 0, again.stderr
        assert sum(recorded.values()) >= ITEMS // 2
        assert not asked_again(server, asked, recorded)
        assert server.extra() <= AT_ONCE, "two workers had half of them each; what the driver left has landed"
        assert len(server.counts()) == 2 * ITEMS
    assert json.loads(again.stdout)["statuses"] == {"succeeded": ITEMS}
    assert len(scene.results()) == ITEMS == scene.runs_ended()
