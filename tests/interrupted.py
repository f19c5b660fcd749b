"""Which tests were running when pytest was interrupted."""


class NamesWhatRan:
    """With workers pytest does not say by itself which tests Ctrl-C, or a limit, has interrupted;
    it waits for them first, and may be killed meanwhile"""

    def __init__(self, config):
        self.config = config
        self.running = set()

    def pytest_runtest_logstart(self, nodeid):
        self.running.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        self.running.discard(nodeid)

    def pytest_keyboard_interrupt(self):
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:  # in a worker, which has nobody to tell
            return
        reporter.line("")  # after the dots
        for nodeid in sorted(self.running):
            reporter.write_line(f"interrupted: {nodeid}")
        reporter.flush()


def pytest_configure(config):
    config.pluginmanager.register(NamesWhatRan(config))
