"""Installed packages that code gets on request: loaded before the lockdown, bounded and repeatable like everything else."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from watching import run

from sonde.errors import ConfigError
from sonde.sandbox import CodeClock, Limits, Sandbox
from sonde.sandbox.policy import profile_named

pytestmark = pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
BOTH = ("numpy", "pandas")


def opened(seed: int = 0) -> Sandbox:
    return Sandbox(
        "general", packages=BOTH, seed=seed, clock=CodeClock(start=1e9), limits=Limits(wall_s=60, memory="256MiB")
    )


@pytest.mark.long
def test_tables_and_arrays_work_after_the_lockdown() -> None:
    code = """
import io
import numpy as np
import pandas as pd
table = pd.read_csv(io.StringIO("who,when,n\\nann,2024-01-02,1\\nbob,2024-02-03,2\\nann,2024-02-04,5\\n"), parse_dates=["when"])
print(table.groupby("who").n.sum().to_dict(), table.set_index("when").resample("ME").n.sum().tolist())
print(table.pivot_table(index="who", values="n", aggfunc="max").to_csv().split(), table.query("n > 1").shape)
print(table.when.dt.tz_localize("Europe/Berlin").iloc[0], len(table.to_html()) > 100, table.describe().shape)
print((np.ones((300, 300)) @ np.ones((300, 300)))[0, 0], np.linalg.inv(np.eye(2) * 2)[0, 0], np.fft.fft([1, 2])[0].real)
"""
    with opened() as box:
        assert run(box, code).splitlines() == [
            "{'ann': 6, 'bob': 2} [1, 7]",
            "['who,n', 'ann,5', 'bob,2'] (2, 3)",
            "2024-01-02 00:00:00+01:00 True (8, 2)",
            "300.0 0.5 3.0",
        ]


def test_their_memory_counts_and_their_files_are_out_of_reach() -> None:
    with opened() as box:
        run(box, "import numpy as np, pandas as pd")
        fill = box.execute("kept = [np.ones(10**7) for _ in range(9)]").fault
        files = [box.execute(code).fault for code in ("np.load('/etc/passwd')", "pd.read_csv('/etc/passwd')")]

        assert run(box, "print(np.ones(10**6).sum())") == "1000000.0\n"
    assert fill is not None and fill.kind == "memory"
    assert all(fault and "PermissionError" in fault.message for fault in files)


def test_their_chance_and_clock_repeat() -> None:
    code = """
import numpy as np, pandas as pd
print(np.random.rand(2), np.random.default_rng().random(2), pd.Series(range(99)).sample(3).tolist())
print(pd.Timestamp.now(), pd.Timestamp.utcnow(), pd.to_datetime("today"))
"""

    def told(seed: int) -> str:
        with opened(seed) as box:
            return run(box, code)

    assert told(1) == told(1) != told(2)
    assert told(1).count("2001-09-09 01:46:40") == 3


def test_a_final_value_of_numbers_is_plain_data() -> None:
    with opened() as box:
        final = box.execute(
            "import numpy as np\nFINAL({'n': np.int64(3), 'all': np.arange(3), 'mean': np.float64(0.5)})"
        ).final

    assert final is not None and final.value == {"n": 3, "all": [0, 1, 2], "mean": 0.5}


def test_without_being_asked_for_they_are_not_there() -> None:
    with Sandbox("general", packages=["numpy"]) as box:
        fault = box.execute("import pandas").fault

    assert fault is not None and fault.kind == "import" and "numpy" in fault.message


@pytest.mark.parametrize(
    ("profile", "name", "said"), [("general", "torch", "numpy, pandas"), ("strict", "numpy", "no imports")]
)
def test_what_cannot_be_had_is_refused_at_once(profile: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        profile_named(profile).having([name])
