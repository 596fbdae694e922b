"""A pytest plugin: a failure is shown when it happens.

A run on a machine that is lent for minutes may be ended before pytest says what went wrong.
"""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Only one process shows: the one that has the terminal."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Shown(terminal))


class _Shown:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """For each phase of each test."""
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.line(f"{report.nodeid} ({report.when}): {report.longreprtext[-2000:]}")
