"""Results of evaluations as pure functions of records: answers, measures, summaries and comparisons."""
