"""Fixtures of the external tests: a folder, a function to start thalweg, and cleanup of its processes.

The last line of output has the counts: .ci/run uses it to distinguish passed tests from skipped ones.
"""

import harness
import pytest


def pytest_report_header():
    return f"thalweg: {harness.BINARY}; mpirun: {' '.join(harness.MPIRUN) or 'none'}"


def pytest_sessionfinish(session, exitstatus):
    """Counts files that were skipped for a missing package as skipped, not as an empty selection."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.OK


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        passed, failed, errors, skipped = (
            len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")
        )
        print(f"external: {passed} passed, {failed + errors} failed, {skipped} skipped")


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
