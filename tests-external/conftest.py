"""What every external test gets: a folder, a way to start thalweg, and that nothing is left running.

The last line counts what was run: .ci/run tells from it tests that passed from tests that could not run here.
"""

import harness
import pytest


def pytest_report_header():
    return f"thalweg: {harness.BINARY}; mpirun: {' '.join(harness.MPIRUN) or 'none'}"


def pytest_sessionfinish(session, exitstatus):
    """Files that were skipped as a whole for want of a package are skips, not an empty selection."""
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
