"""Two real Ray nodes on this machine: a worker, a node and the driver are killed, and nothing is lost or paid twice.

Runs in the environment that scripts/ray.sh makes: `sh scripts/ray.sh run pytest tests/batch/test_ray.py -m slow`.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batch.scene import Scene, asked_again, counting_server, eventually, kill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.enable_socket,  # Ray listens at this machine's own address, not at loopback
    pytest.mark.timeout(1500),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: sh scripts/ray.sh run pytest …"),
]
AT_ONCE = 16
ITEMS = int(os.environ.get("SONDE_TEST_ITEMS", "2000"))


@pytest.fixture
def cluster() -> Generator[Any]:
    """A head and, on request, further nodes; all processes of this machine."""
    cluster: Any = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    try:
        yield cluster
    finally:
        cluster.shutdown()


def workers() -> list[int]:
    """The processes of our actors."""
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "ray::WorkerActor" in line]


def at(cluster: Any) -> dict[str, str]:
    """The environment of a driver of this cluster."""
    return {**os.environ, "RAY_ADDRESS": cluster.address}


def test_a_worker_a_node_and_the_driver_are_killed_and_every_item_is_done_once(tmp_path: Path, cluster: Any) -> None:
    scene = Scene(tmp_path)
    scene.write(ITEMS)
    second = cluster.add_node(num_cpus=2)
    flags = ["--on", "ray", "--concurrency", str(AT_ONCE), "--json"]
    with counting_server(0.02) as server:
        driver = scene.start(server.base_url, *flags, env=at(cluster))
        eventually(lambda: len(server.counts()) >= ITEMS // 5, 600)
        kill(workers()[0])
        eventually(lambda: len(server.counts()) >= ITEMS // 2, 600)
        cluster.remove_node(second, allow_graceful=False)
        eventually(lambda: len(server.counts()) >= ITEMS, 600)
        assert driver.poll() is None, driver.communicate()
        driver.kill()
        driver.communicate()
        eventually(lambda: not workers())
        recorded, asked = scene.replies_on_disk(), server.by_question()
        cluster.add_node(num_cpus=2)
        again = scene.run(server.base_url, *flags, env=at(cluster))

        assert again.returncode == 0, again.stderr
        assert sum(recorded.values()) >= ITEMS // 2
        assert not asked_again(server, asked, recorded)
        assert server.extra() <= AT_ONCE // 4 + AT_ONCE // 2 + AT_ONCE, "a worker of four, a node of two, all"
        assert len(server.counts()) == 2 * ITEMS
    report = json.loads(again.stdout)
    assert report["statuses"] == {"succeeded": ITEMS}
    assert len(scene.results()) == ITEMS == scene.runs_ended()


def test_limits_hold_on_a_cluster_and_a_soft_stop_asks_nothing_twice(tmp_path: Path, cluster: Any) -> None:
    scene = Scene(tmp_path)
    scene.write(30)
    flags = ["--on", "ray", "--concurrency", "4", "--json"]
    with counting_server(0.02) as server:
        poor = scene.run(server.base_url, *flags, "--max-cost-usd", "0.002", env=at(cluster))
        report = json.loads(poor.stdout)
        assert poor.returncode == 1
        assert "cost limit" in report["stopped"]
        assert report["cost_usd"]["total"] <= 0.002
        driver = scene.start(server.base_url, *flags, "--requests-per-minute", "600", env=at(cluster))
        asked = len(server.counts())
        eventually(lambda: len(server.counts()) >= asked + 10)
        driver.terminate()
        out, _ = driver.communicate(timeout=250)
        assert json.loads(out)["stopped"] == "asked to stop"
        assert scene.run(server.base_url, *flags, env=at(cluster)).returncode == 0
        assert server.extra() == 0
    assert len(scene.results()) == 30


def test_a_driver_outside_the_cluster_works_through_the_client(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(20)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes: Any = importlib.import_module("ray.cluster_utils")
    head = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": port}
    cluster = nodes.Cluster(initialize_head=True, head_node_args=head)

    def is_open() -> bool:
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", port)) == 0

    try:
        with counting_server(0.02) as server:
            eventually(is_open)  # the door of the client opens some time after the head
            done = scene.run(server.base_url, "--on", f"ray://127.0.0.1:{port}", "--concurrency", "4")

            assert done.returncode == 0, done.stderr
            assert server.extra() == 0
    finally:
        cluster.shutdown()
    assert len(scene.results()) == 20


def test_an_unreachable_cluster_is_said_within_half_a_minute(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(1)
    with socket.socket() as deaf:  # accepts and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        for address in ("127.0.0.1:9", f"127.0.0.1:{deaf.getsockname()[1]}"):
            started = time.monotonic()
            said = scene.run("http://127.0.0.1:9/v1", "--on", f"ray://{address}")

            assert said.returncode == 2, said.stderr
            assert address in said.stderr
            assert time.monotonic() - started <= 30


@pytest.fixture
def import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the nodes of a cluster look for modules first, and its driver does not."""
    path = tmp_path / "modules"
    path.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(path))
    return path


def spoil(import_path: Path) -> None:
    """From now on no new process of the cluster has a sonde that works."""
    (import_path / "sonde").mkdir()
    (import_path / "sonde/__init__.py").write_text("raise ImportError('half of an upgrade')\n")


def beside(cluster: Any) -> dict[str, str]:
    return {name: value for name, value in at(cluster).items() if name != "PYTHONPATH"}


def test_workers_that_end_before_they_begin_are_said_with_their_reason(
    tmp_path: Path, import_path: Path, cluster: Any
) -> None:
    scene = Scene(tmp_path)
    scene.write(4)
    spoil(import_path)
    started = time.monotonic()

    said = scene.run("http://127.0.0.1:9/v1", "--on", "ray", "--json", env=beside(cluster))

    assert said.returncode == 2, said.stderr
    assert "half of an upgrade" in said.stderr
    assert time.monotonic() - started <= 60


def test_a_cluster_on_which_no_worker_starts_any_more_ends_the_batch_and_the_next_start_goes_on(
    tmp_path: Path, import_path: Path, cluster: Any
) -> None:
    scene = Scene(tmp_path)
    scene.write(60)
    flags = ["--on", "ray", "--concurrency", "8", "--json"]
    with counting_server(0.1) as server:
        driver = scene.start(server.base_url, *flags, env=beside(cluster))
        eventually(lambda: len(server.counts()) >= 20)
        spoil(import_path)
        for worker in workers():
            kill(worker)
        _, said = driver.communicate(timeout=250)
        assert driver.returncode == 2, said
        assert "half of an upgrade" in said
        shutil.rmtree(import_path / "sonde")  # a worker may have compiled it
        again = scene.run(server.base_url, *flags, env=beside(cluster))

        assert again.returncode == 0, again.stderr
        assert server.extra() <= 8
    assert len(scene.results()) == 60 == scene.runs_ended()


IMPATIENT = """
import sys
from pathlib import Path
from sonde.api.settings import resolve
from sonde.batch.cluster import RayCrew
from sonde.batch.driver import drive
from sonde.batch.folder import folder_for
from sonde.batch.limits import SharedLimits
from sonde.batch.manifest import read_manifest
from sonde.batch.progress import plan_batch
from sonde.batch.item_runner import Order

manifest, runs, base_url = sys.argv[1:]
settings = resolve({"model": "openai:gpt-4o-mini", "base_url": base_url, "runs_dir": runs}, {}, Path.cwd())
folder = folder_for(Path(manifest), Path(runs))
with folder.held():
    plan = plan_batch(read_manifest(Path(manifest)).items, folder)
    crew = RayCrew(Order(settings=settings, folder=folder.path), SharedLimits(concurrency=8), "ray", ready_s=5.0)
    outcome = drive(plan, folder, crew)
print(outcome.left, outcome.stopped)
"""


def test_when_every_node_with_a_cpu_goes_the_batch_ends_with_what_is_there_and_a_later_start_goes_on(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.write(30)
    nodes: Any = importlib.import_module("ray.cluster_utils")
    cluster = nodes.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=2)
        with counting_server(0.1) as server:
            driver = subprocess.Popen(
                [sys.executable, "-c", IMPATIENT, str(scene.manifest), str(scene.runs), server.base_url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=at(cluster),
            )
            eventually(lambda: len(server.counts()) >= 10 or driver.poll() is not None)
            cluster.remove_node(node)
            out, said = driver.communicate(timeout=250)
            left, _, stopped = out.partition(" ")
            assert 0 < int(left) <= 30, said
            assert stopped.startswith("no worker could be started")
            assert "\x1b" not in said
            assert not (scene.folder.path / ".seen-by-all").exists()

            cluster.add_node(num_cpus=2)
            again = scene.run(server.base_url, "--on", "ray", "--json", env=at(cluster))
    finally:
        cluster.shutdown()

    assert again.returncode == 0, again.stderr
    assert len(scene.results()) == 30 == scene.runs_ended()


def test_ctrl_c_is_heard_while_the_cluster_has_no_room_for_a_worker(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    nodes: Any = importlib.import_module("ray.cluster_utils")
    cluster = nodes.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        driver = scene.start("http://127.0.0.1:9/v1", "--on", "ray", "--json", env=at(cluster))
        eventually((scene.folder.path / ".seen-by-all").exists)
        driver.send_signal(signal.SIGINT)
        out, said = driver.communicate(timeout=250)
    finally:
        cluster.shutdown()

    assert driver.returncode == 130, said
    assert json.loads(out)["stopped"] == "asked to stop"
    assert json.loads(out)["left"] == 2


def test_a_node_that_joins_later_gets_a_worker(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(400)
    nodes: Any = importlib.import_module("ray.cluster_utils")
    cluster = nodes.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        with counting_server(0.2) as server:
            driver = scene.start(server.base_url, "--on", "ray", "--concurrency", "8", "--json", env=at(cluster))
            eventually(lambda: len(server.counts()) >= 4)
            assert len(workers()) == 1
            cluster.add_node(num_cpus=1)
            eventually(lambda: len(workers()) == 2)
            driver.send_signal(signal.SIGINT)
            out, said = driver.communicate(timeout=250)
    finally:
        cluster.shutdown()

    assert json.loads(out)["workers_replaced"] == 0, said


def test_an_item_that_kills_its_workers_on_a_cluster_is_given_up_and_says_where_to_look(
    tmp_path: Path, cluster: Any
) -> None:
    scene = Scene(tmp_path)
    scene.write(6)
    model = tmp_path / "model.py"
    model.write_text(
        "import os, sys\ntext = sys.stdin.read()\n"
        "launcher = open(f'/proc/{os.getppid()}/stat').read()\n"
        "if '#3' in text: os.kill(int(launcher.rpartition(')')[2].split()[1]), 9)\n"
        'print("```python\\nFINAL(1)\\n```")\n'
    )
    command = [*scene.command("http://127.0.0.1:9/v1"), "--on", "ray", "--concurrency", "4"]
    command[command.index("openai:gpt-4o-mini")] = f"command:{sys.executable} {model}"

    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=at(cluster), check=False)

    results = scene.results()
    assert done.returncode == 1, done.stderr
    assert [name for name, result in results.items() if result.code == "UNEXPECTED_RUNTIME_ERROR"] == ["q3"]
    assert "5 workers died" in results["q3"].message and "Ray's logs" in results["q3"].message
    assert len(results) == 6
