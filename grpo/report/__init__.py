"""Show a run, as pure functions of its files: report, curves, card; trackers and the Hub."""
