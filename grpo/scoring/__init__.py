"""From a completion to its verdict, format, rewards and faults: the one way, whoever made it."""
