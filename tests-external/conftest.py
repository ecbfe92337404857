"""What every external test gets: a folder, a way to start thalweg, and that nothing is left running."""

import harness
import pytest


def pytest_report_header():
    return f"thalweg: {harness.BINARY}; mpirun: {' '.join(harness.MPIRUN) or 'none'}"


@pytest.fixture(scope="session", autouse=True)
def binary():
    if not harness.BINARY.exists():
        pytest.skip(f"{harness.BINARY} is not built (cargo build -p thalweg)")
    return harness.BINARY


@pytest.fixture
def jobs(tmp_path):
    jobs = harness.Jobs(tmp_path)
    yield jobs
    jobs.close()
