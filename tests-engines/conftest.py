"""Reuses the harness, the fixtures and the summary line of the external tests."""

import importlib.util
import sys
from pathlib import Path

EXTERNAL = Path(__file__).resolve().parent.parent / "tests-external"
sys.path.insert(0, str(EXTERNAL))

_specification = importlib.util.spec_from_file_location("external_conftest", EXTERNAL / "conftest.py")
_external = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(_external)

pytest_report_header = _external.pytest_report_header
pytest_sessionfinish = _external.pytest_sessionfinish
pytest_unconfigure = _external.pytest_unconfigure
binary = _external.binary
jobs = _external.jobs
